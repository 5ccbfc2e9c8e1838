"""The entry point of the program: answers signals and reserves standard output before it imports the commands."""

from __future__ import annotations

import atexit
import os
import sys

from penstock import interrupts
from penstock.cli.stdout import reserve_stdout
from penstock.errors import ExitCode


def main() -> None:
    interrupts.install()
    ending = _Ending()
    atexit.register(ending.end)  # the first one registered is the last one called
    try:
        reserve_stdout()
        from penstock.cli.main import main as command

        command()
        ending.code = ExitCode.DONE
    except KeyboardInterrupt:  # while modules were imported; a command answers by itself
        interrupts.ignore()
        interrupts.say("interrupted")
        ending.code = ExitCode.INTERRUPTED
        sys.exit(ExitCode.INTERRUPTED)
    except SystemExit as ended:
        ending.code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
    finally:
        interrupts.ignore()


class _Ending:
    """Ends the process when all exit handlers have run, before Python takes itself down: a thread of pyarrow or DuckDB
    that asks for the interpreter after that moment aborts the process, and a command that succeeded exits with 134."""

    code: int = ExitCode.FAILED  # an exception that nothing answers; Python shows its traceback

    def end(self) -> None:
        try:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
        except BrokenPipeError:
            pass  # whoever read the answer has seen enough
        except (OSError, ValueError) as error:  # a full disk, or a closed stream
            self.code = self.code or ExitCode.FAILED
            os.write(2, f"penstock: standard output can't be written: {error}\n".encode())
        finally:
            os._exit(self.code)

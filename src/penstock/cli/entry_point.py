"""The entry point of the program: installs signal handlers and reserves stdout before it imports the commands."""

from __future__ import annotations

import atexit
import gc
import os
import sys

from penstock import interrupts
from penstock.cli.stdout import reserve_stdout
from penstock.errors import ExitCode

_NEW_OBJECTS = 50_000  # allocations between two garbage collections: imports allocate much and leave no garbage


def main() -> None:
    interrupts.install()
    gc.set_threshold(_NEW_OBJECTS)
    process_exit = _ProcessExit()
    atexit.register(process_exit.exit)  # the first registered handler runs last
    try:
        reserve_stdout()
        from penstock.cli.main import main as command

        command()
        process_exit.code = ExitCode.DONE
    except KeyboardInterrupt:  # during the imports; a command handles its own interrupts
        interrupts.ignore()
        interrupts.print_once("interrupted")
        process_exit.code = ExitCode.INTERRUPTED
        sys.exit(ExitCode.INTERRUPTED)
    except SystemExit as ended:
        process_exit.code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
    finally:
        interrupts.ignore()


class _ProcessExit:
    """Ends the process after the exit handlers, before Python finalizes the interpreter: a thread of pyarrow or DuckDB
    that takes the GIL after that aborts the process, so that a command that succeeded would exit with 134."""

    code: int = ExitCode.FAILED  # of an unhandled exception, for which Python prints the traceback

    def exit(self) -> None:
        try:
            if "opentelemetry.trace" in sys.modules and (tracing := sys.modules.get("penstock.observe.tracing")):
                tracing.flush()  # a provider that was configured before us sends its spans in a later handler
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
        except BrokenPipeError:
            pass  # the reader of the pipe has closed it
        except (OSError, ValueError) as error:  # a full disk, or a closed stream
            self.code = self.code or ExitCode.FAILED
            os.write(2, f"penstock: standard output can't be written: {error}\n".encode())
        finally:
            os._exit(self.code)

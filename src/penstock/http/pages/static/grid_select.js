// The selection of the grid: its counts, and the selector that its actions get. No action gets a list of keys.
"use strict";
(() => {
  const grid = window.penstockGrid;
  const MOST_IN_URL = 150; // customers; a form has room for more
  const MOST_IN_FORM = 10000; // customers of one selector
  const MOST_BYTES = 900000; // of a form
  const by = (id) => document.getElementById(id);
  const number = (count) => count.toLocaleString("en-US");
  const counted = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;
  grid.counted = counted;

  /** The selector of a rectangle: the fields of /actions/new. All customers need no ids. */
  grid.selectorOf = (model, box) => {
    const isAll = model.rows === model.allRows && box.top === 0 && box.bottom === model.rows - 1;
    return {
      source: model.source,
      query: model.query,
      customer: isAll ? [] : model.labels.slice(box.top, box.bottom + 1).map((label) => label.id),
      since: grid.dayText(model.first + box.left),
      until: grid.dayText(model.first + box.right),
      status: model.highlighted === null ? "" : model.cells[model.highlighted].state,
    };
  };

  const fieldsOf = (selector) => Object.entries(selector)
    .flatMap(([name, value]) => (Array.isArray(value) ? value.map((one) => [name, one]) : value ? [[name, value]] : []));

  /** Show the selection of a model, or hide the panel. Returns the sentence for the live region. */
  grid.showSelection = (model, box) => {
    by("grid-selection").hidden = !box;
    by("grid-clear").disabled = !box;
    if (!box) return "";
    const counts = grid.countCodes(model.codes, model.columns, box.top, box.bottom, box.left, box.right);
    const expected = counts.reduce((sum, count, code) => sum + (code ? count : 0), 0);
    const chosen = model.highlighted === null ? expected : counts[model.highlighted];
    const sentence = describe(model, box, expected, chosen);
    by("grid-total").textContent = sentence;
    by("grid-counts").replaceChildren(...model.order.filter((code) => code && counts[code]).map((code) => {
      const item = document.createElement("li");
      const cell = model.cells[code];
      item.textContent = `${cell.symbol} ${cell.text}: ${number(counts[code])}`;
      return item;
    }));
    showActions(model, box, counts, chosen);
    return sentence;
  };

  function describe(model, box, expected, chosen) {
    const customers = box.bottom - box.top + 1;
    const [from, to] = [model.labels[box.top].id, model.labels[box.bottom].id];
    const [since, until] = [grid.dayText(model.first + box.left), grid.dayText(model.first + box.right)];
    const what = model.highlighted === null
      ? counted(expected, "partition", "partitions")
      : `${number(chosen)} of ${counted(expected, "partition", "partitions")} (${model.cells[model.highlighted].text})`;
    const whose = customers === 1 ? `customer ${from}` : `${number(customers)} customers (${from} to ${to})`;
    const when = since === until ? since : `${counted(box.right - box.left + 1, "day", "days")} (${since} to ${until})`;
    return `${what}: ${whose}, ${when}.`;
  }

  function showActions(model, box, counts, chosen) {
    const selector = grid.selectorOf(model, box);
    const fields = fieldsOf(selector);
    const inUrl = selector.customer.length <= MOST_IN_URL;
    const inForm = !inUrl && selector.customer.length <= MOST_IN_FORM && bytesOf(fields) <= MOST_BYTES;
    const hints = [];
    if (chosen && selector.status) {
      const same = model.order.reduce((sum, code) => sum + (model.cells[code].state === selector.status ? counts[code] : 0), 0);
      if (same > chosen) {
        hints.push(`Actions select by state. About ${number(same)} partitions here have the state ${selector.status}, more than the ${number(chosen)} that are highlighted. The preview lists them.${model.cells[model.highlighted].display ? " The list has the highlighted ones only." : ""}`);
      }
    }
    if (!inUrl && !inForm) {
      hints.push(`The selection has ${number(selector.customer.length)} customers. An action takes all customers or at most ${number(MOST_IN_FORM)}: narrow the selection, or select all that match without a filter of customers.`);
    } else if (inForm) {
      hints.push("The selection has too many customers for a link. The buttons preview the action at once.");
    }
    by("grid-hint").hidden = !hints.length;
    by("grid-hint").textContent = hints.join(" ");
    const display = model.highlighted === null ? "" : model.cells[model.highlighted].display;
    const listed = display ? fieldsOf({ ...selector, status: "", display }) : fields; // the list selects by either
    const links = by("grid-links");
    links.hidden = !chosen || !inUrl;
    for (const link of links.hidden ? [] : links.querySelectorAll("a")) {
      const query = new URLSearchParams(link.dataset.act ? [["act", link.dataset.act], ...fields] : listed);
      link.href = `${link.dataset.act ? "/actions/new" : "/partitions"}?${query}`;
    }
    const form = by("grid-preview");
    if (!form) return;
    form.hidden = !chosen || !inForm;
    sent = fields;
  }

  const bytesOf = (fields) => fields.reduce((sum, [name, value]) => sum + name.length + encodeURIComponent(value).length + 2, 0);

  let sent = []; // the fields of the form: thousands of elements are made when it is sent, not while a drag selects
  by("grid-preview")?.addEventListener("submit", () => {
    by("grid-fields").replaceChildren(...sent.map(([name, value]) => {
      const field = document.createElement("input");
      [field.type, field.name, field.value] = ["hidden", name, value];
      return field;
    }));
  });
})();

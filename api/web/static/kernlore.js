// What HTML and htmx cannot do by themselves: many files with progress for each, copying a text,
// and a sign of life while a form takes long. Every page works without it.
"use strict";

(() => {
  const AT_ONCE = 2; // files that are sent at a time

  const rowFor = (form, name) => {
    const row = document.createElement("li");
    const label = document.createElement("strong");
    const bar = document.createElement("progress");
    const note = document.createElement("small");
    label.textContent = name;
    bar.max = 1;
    bar.value = 0;
    bar.setAttribute("aria-label", `${name}: sent`);
    note.textContent = "waits for its turn";
    row.append(label, bar, note);
    document.querySelector(form.dataset.upload).append(row);
    return { row, bar, note };
  };

  // One file as a form of its own; the answer is the row that shows how far it is read.
  const send = (form, file, group, shown, single) =>
    new Promise((done) => {
      const body = new FormData(form);
      body.delete("file");
      if (!single) body.delete("title"); // it is that of one document
      for (const name of [...body.keys()]) if (!body.get(name)) body.delete(name);
      body.append("file", file, file.webkitRelativePath || file.name);
      body.append("group", group);
      const request = new XMLHttpRequest();
      request.open("POST", form.action);
      request.setRequestHeader("HX-Request", "true");
      request.upload.onprogress = (event) => {
        if (!event.lengthComputable) return;
        shown.bar.value = event.loaded / event.total;
        shown.note.textContent =
          event.loaded < event.total ? `${Math.round((100 * event.loaded) / event.total)} % sent` : "sent, being stored";
      };
      request.onerror = () => {
        shown.note.textContent = "The service did not answer. Check that it runs, then send the file again.";
        done();
      };
      request.onload = () => {
        const holder = document.createElement("template");
        holder.innerHTML = request.responseText;
        const row = holder.content.querySelector("li");
        if (row) {
          shown.row.replaceWith(row);
          htmx.process(row);
        } else {
          shown.note.textContent = `Refused with status ${request.status}.`;
        }
        done();
      };
      request.send(body);
    });

  const sendAll = async (form, files) => {
    const letters = crypto.getRandomValues(new Uint8Array(8));
    const group = "upl_" + [...letters].map((b) => b.toString(16).padStart(2, "0")).join("");
    const waiting = files.map((file) => [file, rowFor(form, file.name)]);
    const work = async () => {
      for (let next = waiting.shift(); next; next = waiting.shift()) await send(form, next[0], group, next[1], files.length === 1);
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
  };

  const prepareUpload = (form) => {
    const input = form.querySelector("input[type=file]");
    const area = input.closest(".drop");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const files = [...input.files];
      input.value = "";
      sendAll(form, files);
    });
    for (const kind of ["dragover", "dragleave", "drop"])
      area.addEventListener(kind, () => area.classList.toggle("over", kind === "dragover"));
  };

  const prepareCopy = (button) => {
    if (!navigator.clipboard) return; // not in a secure context: the text can still be marked
    button.hidden = false;
    const label = button.textContent;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.querySelector(button.dataset.copy).textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = label), 2000);
    });
  };

  // A text file of this machine into the field that it belongs to, to be looked at before it is sent.
  const prepareFill = (input) => {
    input.closest("[hidden]").hidden = false;
    input.addEventListener("change", async () => {
      if (input.files.length) document.querySelector(input.dataset.into).value = await input.files[0].text();
    });
  };

  document.querySelectorAll("form[data-upload]").forEach(prepareUpload);
  document.querySelectorAll("input[data-into]").forEach(prepareFill);
  document.querySelectorAll("button[data-copy]").forEach(prepareCopy);
  document.querySelectorAll("form[data-busy]").forEach((form) =>
    form.addEventListener("submit", () => (document.querySelector(form.dataset.busy).hidden = false)),
  );
  // The menu of a narrow window is wider than that.
  document.querySelector(".top [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

  // A page that comes back from the browser's cache is as it was before it was sent.
  addEventListener("pageshow", () => document.querySelectorAll("[data-busy-note]").forEach((note) => (note.hidden = true)));
})();

// What HTML and htmx cannot do by themselves: files and folders with progress for each, copying a
// text, search by a key, errors next to their form, and a sign of life while a form takes long.
// Every page works without it.
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
  const send = (form, { file, path }, group, shown, single) =>
    new Promise((done) => {
      const body = new FormData(form);
      body.delete("file");
      if (!single) body.delete("title"); // it is that of one document
      for (const name of [...body.keys()]) if (!body.get(name)) body.delete(name);
      body.append("file", file, path);
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

  const sendAll = async (form, all, fromFolder) => {
    const chosen = all.filter((one) => !fromFolder || !(hidden(one) || noDocument(one)));
    const left = all.length - chosen.length;
    const without = left ? `${left} images and hidden files were left out. ` : "";
    const letters = crypto.getRandomValues(new Uint8Array(8));
    const group = "upl_" + [...letters].map((b) => b.toString(16).padStart(2, "0")).join("");
    const sum = document.querySelector("#sum");
    let sent = 0;
    const count = () => (sum.textContent = `${sent} of ${chosen.length} files sent. ${without}`);
    const waiting = chosen.map((one) => [one, rowFor(form, one.path)]);
    count();
    const work = async () => {
      for (let next = waiting.shift(); next; next = waiting.shift()) {
        await send(form, next[0], group, next[1], chosen.length === 1);
        sent += 1;
        count();
        // The steps of a chip renew themselves from then on, while files are being read.
        if (sent === 1 && document.querySelector("#live"))
          htmx.ajax("GET", location.href, { target: "#live", select: "#live", swap: "outerHTML" });
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    const link = document.createElement("a");
    link.href = form.action.replace(/upload$/, `jobs?group=${group}`);
    link.textContent = "Watch all of them, with the time left";
    sum.append(link);
  };

  // The files of a dropped entry, each with its path below the folder that was dropped.
  const filesOf = async (entry, above = "") => {
    const path = above + entry.name;
    if (entry.isFile) return [{ path, file: await new Promise((done, fail) => entry.file(done, fail)) }];
    if (entry.name.startsWith(".")) return [];
    const reader = entry.createReader();
    const found = [];
    for (;;) {
      const some = await new Promise((done, fail) => reader.readEntries(done, fail));
      if (!some.length) return found;
      for (const inside of some) found.push(...(await filesOf(inside, `${path}/`)));
    }
  };

  const listed = (input) => [...input.files].map((file) => ({ file, path: file.webkitRelativePath || file.name }));
  const hidden = ({ path }) => path.split("/").some((part) => part.startsWith("."));
  // Pictures and the like beside the documents of a folder.
  const noDocument = ({ file }) => /^(image|video|audio|font)\//.test(file.type);

  const prepareUpload = (form) => {
    const [input, folder] = form.querySelectorAll("input[type=file]");
    const area = input.closest(".drop");
    folder.closest("[hidden]").hidden = false;
    folder.addEventListener("change", () => (input.required = !folder.files.length));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const chosen = [...listed(input), ...listed(folder)];
      const fromFolder = folder.files.length > 0;
      input.value = folder.value = "";
      input.required = true;
      sendAll(form, chosen, fromFolder);
    });
    for (const kind of ["dragover", "dragleave", "drop"])
      area.addEventListener(kind, (event) => {
        event.preventDefault();
        area.classList.toggle("over", kind === "dragover");
      });
    area.addEventListener("drop", async (event) => {
      const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
      const found = (await Promise.all(entries.map((entry) => filesOf(entry)))).flat();
      if (found.length) sendAll(form, found, entries.some((entry) => entry.isDirectory));
    });
  };

  // A file that is dropped on a form becomes the text of its field.
  const prepareDrop = (form) => {
    for (const kind of ["dragover", "drop"]) form.addEventListener(kind, (event) => event.preventDefault());
    form.addEventListener("drop", async (event) => {
      const file = event.dataTransfer.files[0];
      if (file) document.querySelector(form.dataset.fileDrop).value = await file.text();
    });
  };

  // An error is shown above the form that was sent, and what was typed stays.
  const prepareForm = (form) =>
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const body = new URLSearchParams(new FormData(form, event.submitter));
      const answer = await fetch(form.action, { method: "POST", body }).catch(() => null);
      if (answer?.redirected) {
        if (answer.url === location.href) location.reload();
        else location.assign(answer.url);
        return;
      }
      const page = answer && new DOMParser().parseFromString(await answer.text(), "text/html");
      const note = page?.querySelector("[role=alert]") || document.createElement("div");
      if (!note.className) {
        note.className = "note bad";
        note.textContent = "The service did not answer. Check that it runs, then try again.";
      }
      form.querySelector("[data-error]")?.remove();
      note.dataset.error = "";
      note.tabIndex = -1;
      form.prepend(note);
      note.focus();
    });

  const prepareSearch = (link) => {
    const box = document.querySelector("#finder");
    const open = (event) => {
      event.preventDefault();
      if (box.open) return;
      box.showModal();
      box.querySelector("input").select();
    };
    link.addEventListener("click", open);
    addEventListener("keydown", (event) => {
      const typing = event.target.closest?.("input, textarea, select");
      if ((event.key === "/" && !typing) || (event.key === "k" && (event.ctrlKey || event.metaKey))) open(event);
    });
    box.addEventListener("click", (event) => event.target === box && box.close());
    box.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const stops = [...box.querySelectorAll("input, #found a")];
      stops.at((stops.indexOf(document.activeElement) + step) % stops.length).focus();
    });
  };

  const prepareAll = (box) =>
    box.addEventListener("change", () =>
      box.form.querySelectorAll(`input[name=${box.dataset.all}]`).forEach((one) => (one.checked = box.checked)),
    );

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
  document.querySelectorAll("form[data-file-drop]").forEach(prepareDrop);
  document.querySelectorAll("form[method=post]:not([data-plain], [data-upload], [data-busy])").forEach(prepareForm);
  document.querySelectorAll("[data-search]").forEach(prepareSearch);
  document.querySelectorAll("input[data-all]").forEach(prepareAll);
  document.querySelectorAll("input[data-into]").forEach(prepareFill);
  document.querySelectorAll("button[data-copy]").forEach(prepareCopy);
  document.querySelectorAll("form[data-busy]").forEach((form) =>
    form.addEventListener("submit", () => (document.querySelector(form.dataset.busy).hidden = false)),
  );

  // A page that comes back from the browser's cache is as it was before it was sent.
  addEventListener("pageshow", () => document.querySelectorAll("[data-busy-note]").forEach((note) => (note.hidden = true)));
})();

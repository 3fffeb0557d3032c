// Search without a server: a browser that reads pages from a folder starts no worker, so the search runs in a hidden frame.
// Material's plugin `offline` would load a script for this from another site. It leaves that out if one with this file's name is there.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const hidden = Object.assign(document.createElement("iframe"), { hidden: true });
      this.frame = document.body.appendChild(hidden).contentWindow;
      this.frame.document.open();
      this.frame.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((loaded) => (this.frame.onload = loaded));
      this.frame.document.write(`<body><script src="${url}"></script></body>`);
      this.frame.document.close();
    }

    postMessage(data) {
      this.ready.then(() => this.frame.dispatchEvent(new MessageEvent("message", { data })));
    }
  };

// A page that was opened from the disk may not start a worker: for the search, a hidden frame serves as one.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc =
        `<script>postMessage = (data) => frameElement.dispatchEvent(new MessageEvent("message", { data }))<\/script>` +
        `<script src="${url}"><\/script>`;
      this.ready = new Promise((done) => this.frame.addEventListener("load", done));
      this.frame.addEventListener("message", ({ data }) => this.dispatchEvent(new MessageEvent("message", { data })));
      document.body.append(this.frame);
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}

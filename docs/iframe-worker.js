// A Worker for pages that are read from a disk, where browsers start none: its script runs in a hidden frame.
// The search of the site uses it. Source: HTML Living Standard, "Dedicated workers and the Worker interface".
if (location.protocol === "file:") window.Worker = class extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    this.inner = frame.contentWindow;
    this.waiting = [];
    this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    const script = this.inner.document.createElement("script");
    script.src = new URL(url, document.baseURI).href;
    script.onload = () => {
      for (const data of this.waiting.splice(0)) this.tell(data);
      this.waiting = null;
    };
    this.inner.document.head.append(script);
  }
  tell(data) {
    this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
  }
  postMessage(data) {
    if (this.waiting) this.waiting.push(data);
    else this.tell(data);
  }
  terminate() {
    this.inner.frameElement.remove();
  }
};

// A broker as a task node sees it: JSON-RPC 2.0 over one DEALER socket.
//
// One frame is one message. Calls may overlap: answers are told apart by their id. A call that is not answered in time
// rejects with NoAnswer, and the socket is made anew: what waited in the old one for a broker that was away is gone
// with it, and does not arrive minutes later.

import { Dealer } from "zeromq";

const ANSWER_MS = 3_000;

/** The broker answered, with an error. */
export class RpcError extends Error {
  constructor({ code, message, data }) {
    super(message);
    this.code = code;
    this.data = data;
  }
}

/** Nobody answered: it may have been done, or not. */
export class NoAnswer extends Error {}

export class Broker {
  #endpoint;
  #socket;
  #count = 0;
  #waiting = new Map(); // id of a call → { resolve, reject, timer }
  #sending = Promise.resolve(); // zeromq allows one send at a time

  constructor(endpoint) {
    this.#endpoint = endpoint;
    this.#connect();
  }

  /** The result of `zerotask.broker.<method>(...params)`. */
  call(method, ...params) {
    const id = ++this.#count;
    const text = JSON.stringify({ jsonrpc: "2.0", method: `zerotask.broker.${method}`, params, id });
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.#reconnect(`no answer to ${method} from ${this.#endpoint}`), ANSWER_MS);
      this.#waiting.set(id, { resolve, reject, timer });
      const socket = this.#socket;
      // A send that fails belongs to a socket that was closed meanwhile: its call was rejected then.
      this.#sending = this.#sending.then(() => socket.send(text)).catch(() => {});
    });
  }

  close() {
    this.#abandon("closed");
    this.#socket.close();
  }

  #connect() {
    this.#socket = new Dealer({ linger: 0 });
    this.#socket.connect(this.#endpoint);
    this.#receive(this.#socket);
  }

  #reconnect(reason) {
    this.#socket.close();
    this.#sending = Promise.resolve();
    this.#connect();
    this.#abandon(reason);
  }

  #abandon(reason) {
    const calls = [...this.#waiting.values()];
    this.#waiting.clear();
    for (const { reject, timer } of calls) {
      clearTimeout(timer);
      reject(new NoAnswer(reason));
    }
  }

  async #receive(socket) {
    for await (const [text] of socket) {
      const answer = JSON.parse(text.toString());
      const call = this.#waiting.get(answer.id);
      if (call === undefined) continue; // it came too late, and nobody waits for it any more
      this.#waiting.delete(answer.id);
      clearTimeout(call.timer);
      if (answer.error) call.reject(new RpcError(answer.error));
      else call.resolve(answer.result);
    }
  }
}

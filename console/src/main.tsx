// Where the console begins: who is there, then the shell. Nothing else happens at the start.

import { render } from "preact";
import "./style/base.css";
import "./style/parts.css";
import "./style/pages.css";
import { listenForKeys } from "./keys";
import { follow } from "./router";
import { look } from "./session";
import { Shell } from "./shell";
import { watchTheme } from "./theme";

watchTheme();
follow();
listenForKeys();
void look();
const root = document.getElementById("app");
if (root) {
  root.replaceChildren();
  render(<Shell />, root);
}

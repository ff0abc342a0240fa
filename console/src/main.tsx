// The entry point: it reads the session and renders the shell.

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

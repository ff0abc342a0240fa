// The colour theme: that of the system, until the user chooses one. The choice is stored in the browser.

import { computed, signal } from "@preact/signals";

export type Choice = "auto" | "light" | "dark";
const KEY = "scale0.theme";

const system = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(system.matches);
export const choice = signal<Choice>(stored());
export const isDark = computed(() => choice.value === "dark" || (choice.value === "auto" && systemDark.value));

function stored(): Choice {
  const found = keep(() => localStorage.getItem(KEY));
  return found === "light" || found === "dark" ? found : "auto";
}

/** The browser may forbid storage; then the choice lasts until the page is closed. */
function keep<T>(act: () => T): T | null {
  try {
    return act();
  } catch {
    return null;
  }
}

export function choose(next: Choice): void {
  choice.value = next;
  keep(() => localStorage.setItem(KEY, next));
}

export function watchTheme(): void {
  system.addEventListener("change", (event) => {
    systemDark.value = event.matches;
  });
  isDark.subscribe((dark) => {
    document.documentElement.dataset["theme"] = dark ? "dark" : "light";
  });
}

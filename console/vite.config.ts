// How the console is built: into the package's own folder, so that a wheel carries it.
// Nothing is inlined as a data URL or a script: the content policy of the server forbids both.
import { defineConfig } from "vitest/config";

/** Where `npm run dev` finds the API: the fake one, or a network of `scale0 up`. */
const API = "http://127.0.0.1:5780";

export default defineConfig({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/scale0/http/pages",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    target: "es2022",
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
  },
  server: { proxy: { "/api": API } },
  test: { include: ["test/**/*.test.ts"], environment: "node" },
});

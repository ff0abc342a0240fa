"""A web server as examples of checks and handlers look for one: port 80, and 8443 with TLS. It answers yes to all."""

import http.server
import ssl
import sys
import threading


class Yes(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815 # the library's word

    def log_message(self, *_: object) -> None:
        pass


plain, secure = (http.server.ThreadingHTTPServer(("127.0.0.1", port), Yes) for port in (80, 8443))
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(*sys.argv[1:])
secure.socket = context.wrap_socket(secure.socket, server_side=True)
threading.Thread(target=secure.serve_forever, daemon=True).start()
sys.stdout.write("ready\n")
sys.stdout.flush()
plain.serve_forever()

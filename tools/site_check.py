# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Renders each page of the site in Chromium, 400 pixels wide, as a reader on a phone has it.

Fails on an error of a script, a file that is missing, a request to another host, a page that is wider than the window, a link to a place of
this site that is not there, and a search that finds nothing.
"""

import functools
import http.server
import pathlib
import sys
import threading
import urllib.parse

from playwright.sync_api import sync_playwright

WIDTH = 400


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def main(folder: str, chromium: str) -> int:
    site = pathlib.Path(folder).resolve()
    pages = sorted(path for path in site.rglob("*.html") if "rust" not in path.relative_to(site).parts and path.name != "404.html")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}/"
    faults: list[str] = []
    with sync_playwright() as play:
        # No page may reach anything but this server; Chromium itself is told not to, either.
        browser = play.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
        )
        view = browser.new_page(viewport={"width": WIDTH, "height": 800})
        name = ""
        view.on("pageerror", lambda error: faults.append(f"{name}: {error}"))
        view.on("request", lambda request: request.url.startswith((base, "data:", "blob:")) or faults.append(f"{name}: asks {request.url}"))
        view.on("response", lambda response: response.ok or response.status == 304 or faults.append(f"{name}: {response.status} {response.url}"))
        for page in pages:
            name = str(page.relative_to(site))
            view.goto(base + name, wait_until="load")
            if not view.inner_text("article").strip():
                faults.append(f"{name}: an empty page")
            wide = view.evaluate("document.documentElement.scrollWidth")
            if wide > WIDTH:
                faults.append(f"{name}: {wide} pixels wide")
            for link in set(view.eval_on_selector_all("article a[href]", "links => links.map(link => link.href)")):
                path = urllib.parse.unquote(urllib.parse.urlsplit(link).path).lstrip("/")
                if link.startswith(base) and not (site / path).exists() and not (path.startswith("rust/") and not (site / "rust").exists()):
                    faults.append(f"{name}: leads to {path}, which is not there")
        name = "search"
        view.set_viewport_size({"width": 1200, "height": 800})
        view.goto(base + "index.html", wait_until="load")
        view.fill("input[data-md-component=search-query]", "queue")
        view.wait_for_selector(".md-search-result__item", timeout=30_000)
        browser.close()
    server.shutdown()
    print(f"{len(pages)} pages rendered, {len(faults)} faults")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

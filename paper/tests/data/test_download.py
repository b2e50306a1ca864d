"""Downloads from a server on loopback: whole, interrupted and resumed, wrong, refused."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import http.server
import threading
from pathlib import Path

import numpy as np
import pytest

from torchldr_paper import data
from torchldr_paper.data import download

CONTENT = np.random.default_rng(0).bytes(1_000_003)


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.files`; can drop connections, ignore Range, or answer with an error."""

    def do_GET(self) -> None:
        server = self.server
        asked = self.headers.get("Range")
        server.requests.append((self.path, asked))
        if server.errors:
            self.send_error(server.errors.pop(0))
            return
        content = server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if asked and server.ranges:
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            start = 0
            self.send_response(200)
        body = content[start:]
        if server.length is not None:
            self.send_header("Content-Length", server.length.format(len(body)))
        self.end_headers()
        if server.drops:
            body = body[: server.drops.pop(0)]
            self.close_connection = True
        with contextlib.suppress(ConnectionError):  # whoever asked may have had enough
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server():
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.files, httpd.requests, httpd.drops, httpd.errors = {}, [], [], []
    httpd.ranges, httpd.length = True, "{}"
    httpd.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield httpd
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)


@pytest.fixture
def rectangles(small, server):
    """Rectangles as one file on the server, with its right checksum."""
    digest = hashlib.sha1(CONTENT).hexdigest()
    files = tuple(dataclasses.replace(file, shape=(100, 785)) for file in small["rectangles"].files)
    small["rectangles"] = dataclasses.replace(
        small["rectangles"], checksums={"rectangles.zip": digest}, files=files
    )
    server.files["/x/rectangles.zip"] = CONTENT
    return server.url + "/x"


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_whole(server, rectangles, tmp_path):
    seen = []
    (path,) = data.fetch("rectangles", tmp_path / "new", rectangles, progress=lambda *args: seen.append(args))
    assert path == tmp_path / "new" / "rectangles" / "rectangles.zip"
    assert path.read_bytes() == CONTENT
    assert left_behind(tmp_path / "new") == ["rectangles.zip"]
    assert seen[0] == ("rectangles.zip", 0, len(CONTENT))
    assert seen[-1] == ("rectangles.zip", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_what_is_there_is_left_alone_unless_forced(server, rectangles, tmp_path):
    data.fetch("rectangles", tmp_path, rectangles)
    data.fetch("rectangles", tmp_path, rectangles)
    assert len(server.requests) == 1
    data.fetch("rectangles", tmp_path, rectangles, force=True)
    assert len(server.requests) == 2


def test_a_damaged_file_is_fetched_again(server, rectangles, tmp_path):
    (tmp_path / "rectangles").mkdir()
    (tmp_path / "rectangles" / "rectangles.zip").write_bytes(b"damaged")
    (path,) = data.fetch("rectangles", tmp_path, rectangles)
    assert path.read_bytes() == CONTENT


def test_interrupted_and_resumed_by_itself(server, rectangles, tmp_path):
    server.drops = [300_000, 200_000]
    (path,) = data.fetch("rectangles", tmp_path, rectangles)
    assert path.read_bytes() == CONTENT
    ranges = [asked for _, asked in server.requests]
    assert ranges == [None, "bytes=300000-", "bytes=500000-"]


def test_interrupted_and_resumed_by_the_next_call(server, rectangles, tmp_path):
    def interrupt(name, done, total):
        if done > 400_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.fetch("rectangles", tmp_path, rectangles, progress=interrupt)
    assert left_behind(tmp_path) == ["rectangles.zip.part"]
    arrived = (tmp_path / "rectangles" / "rectangles.zip.part").stat().st_size
    assert 400_000 < arrived < len(CONTENT)
    (path,) = data.fetch("rectangles", tmp_path, rectangles)
    assert path.read_bytes() == CONTENT
    assert server.requests[-1][1] == f"bytes={arrived}-"
    assert left_behind(tmp_path) == ["rectangles.zip"]


def test_given_up_keeps_what_arrived(server, rectangles, tmp_path):
    server.drops = [300_000] + [0] * 9
    with pytest.raises(data.DownloadError, match="300,000 bytes are kept; fetch again"):
        data.fetch("rectangles", tmp_path, rectangles, retries=3)
    assert len(server.requests) == 4
    server.drops = []
    assert data.fetch("rectangles", tmp_path, rectangles)[0].is_file()


def test_a_server_without_range_sends_it_all_again(server, rectangles, tmp_path):
    server.ranges, server.drops = False, [300_000]
    (path,) = data.fetch("rectangles", tmp_path, rectangles)
    assert path.read_bytes() == CONTENT


def test_all_had_arrived_but_for_the_last_step(server, rectangles, tmp_path):
    (tmp_path / "rectangles").mkdir()
    (tmp_path / "rectangles" / "rectangles.zip.part").write_bytes(CONTENT)
    (path,) = data.fetch("rectangles", tmp_path, rectangles)
    assert path.read_bytes() == CONTENT
    assert left_behind(tmp_path) == ["rectangles.zip"]


def test_a_part_that_is_too_long_is_thrown_away(server, rectangles, tmp_path):
    (tmp_path / "rectangles").mkdir()
    (tmp_path / "rectangles" / "rectangles.zip.part").write_bytes(CONTENT + b"more")
    (path,) = data.fetch("rectangles", tmp_path, rectangles)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("part", [b"", b"something else"])
def test_a_wrong_checksum_is_refused_and_leaves_nothing(server, rectangles, tmp_path, part):
    server.files["/x/rectangles.zip"] = CONTENT[:-1] + b"?"
    if part:
        (tmp_path / "rectangles").mkdir()
        (tmp_path / "rectangles" / "rectangles.zip.part").write_bytes(part)
    with pytest.raises(data.DataFileError, match=r"rectangles\.zip: sha1 of what came is .* removed"):
        data.fetch("rectangles", tmp_path, rectangles)
    assert left_behind(tmp_path) == []


def test_passing_errors_are_tried_again_and_final_ones_are_not(server, rectangles, tmp_path):
    server.errors = [503, 429]
    assert data.fetch("rectangles", tmp_path / "a", rectangles)[0].is_file()
    server.requests.clear()
    with pytest.raises(data.DownloadError, match="the server says 404"):
        data.fetch("rectangles", tmp_path / "b", server.url + "/nowhere")
    assert len(server.requests) == 1
    assert left_behind(tmp_path / "b") == []


@pytest.mark.parametrize("length", ["{}", None, "9" * 15])
def test_more_than_the_file_can_have_is_not_taken(server, rectangles, tmp_path, monkeypatch, length):
    monkeypatch.setattr(download, "largest_download", lambda file: 600_000)
    server.length = length
    with pytest.raises(data.DownloadError, match="sends more than the 600,000 bytes"):
        data.fetch("rectangles", tmp_path, rectangles)
    assert len(server.requests) == 1
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("length", ["hello", "-5", "1.5"])
def test_a_length_that_is_no_number(server, rectangles, tmp_path, length):
    server.length = length
    (path,) = data.fetch("rectangles", tmp_path, rectangles)
    assert path.read_bytes() == CONTENT


def test_a_server_that_sends_a_byte_a_connection(server, rectangles, tmp_path):
    server.drops = [1] * 1000
    with pytest.raises(data.DownloadError, match="4 bytes are kept; fetch again to go on"):
        data.fetch("rectangles", tmp_path, rectangles)
    assert len(server.requests) == 4
    server.drops = []
    assert data.fetch("rectangles", tmp_path, rectangles)[0].read_bytes() == CONTENT


def test_nobody_answers(small, tmp_path):
    with pytest.raises(data.DownloadError, match="the download failed"):
        data.fetch("rectangles", tmp_path, "http://127.0.0.1:9/", retries=2)


def test_a_copy_serves_where_the_owner_does_not(small, server, tmp_path):
    spec = small["mnist"]
    addresses = (server.url + "/gone/", server.url + "/copy/")
    small["mnist"] = dataclasses.replace(spec, addresses=addresses)
    for file in spec.downloads:
        server.files[f"/copy/{file}"] = file.encode()
    paths = data.fetch("mnist", tmp_path)
    assert [path.name for path in paths] == list(spec.downloads)
    assert paths[0].read_bytes() == spec.downloads[0].encode()
    small["mnist"] = dataclasses.replace(spec, addresses=(addresses[0], server.url + "/too/"))
    with pytest.raises(data.DownloadError, match=r"gone.*404.*too.*404"):
        data.fetch("mnist", tmp_path / "b")


def test_the_address_of_the_file_itself(server, rectangles, tmp_path):
    (path,) = data.fetch("rectangles", tmp_path, rectangles + "/rectangles.zip")
    assert path.read_bytes() == CONTENT


def test_other_addresses_are_refused(small, tmp_path):
    for url in ("file:///etc/passwd", "ftp://example.org/", "example.org"):
        with pytest.raises(ValueError, match="url must begin with http"):
            data.fetch("rectangles", tmp_path, url)
    with pytest.raises(ValueError, match="unknown dataset"):
        data.fetch("nothing", tmp_path)


def test_into_the_variables_folder_or_the_users_cache(server, rectangles, tmp_path, monkeypatch, user_cache):
    assert data.fetch("rectangles", url=rectangles)[0].is_relative_to(user_cache)
    monkeypatch.setenv("TORCHLDR_DATA", str(tmp_path / "variable"))
    (path,) = data.fetch("rectangles", url=rectangles)
    assert path.is_relative_to(tmp_path / "variable")


def test_fetched_is_loaded(small, maker, put, server, tmp_path):
    spec = small["mnist"]
    put(maker.files(spec)[1], tmp_path / "owner", ".gz")
    for path in (tmp_path / "owner").iterdir():
        server.files[f"/{path.name}"] = path.read_bytes()
    data.fetch("mnist", tmp_path / "mine", server.url)
    loaded = data.load("mnist", tmp_path / "mine")
    assert loaded.fingerprint == data.load("mnist", tmp_path / "owner").fingerprint

"""Downloads from a server on loopback: whole, cut short, wrong, refused."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import threading
from pathlib import Path

import numpy as np
import pytest

from torchldr_paper import data
from torchldr_paper.data import registry

CONTENT = np.random.default_rng(0).bytes(1_000_003)


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.files`, and drops connections after so many bytes."""

    def do_GET(self) -> None:
        server = self.server
        server.requests.append(self.path)
        content = server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: server.drops.pop(0)] if server.drops else content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server():
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.files, httpd.requests, httpd.drops = {}, [], []
    httpd.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield httpd
    httpd.shutdown()
    thread.join()
    httpd.server_close()


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


@pytest.mark.parametrize("progress", [True, False])
def test_whole(server, rectangles, tmp_path, capfd, progress):
    (path,) = data.fetch("rectangles", tmp_path / "new", rectangles, progress=progress)
    assert path == tmp_path / "new" / "rectangles" / "rectangles.zip"
    assert path.read_bytes() == CONTENT
    assert left_behind(tmp_path / "new") == ["rectangles.zip"]
    assert bool(capfd.readouterr().err) == progress


def test_every_download_has_a_checksum():
    """What was cut short on its way is noticed by it."""
    for spec in registry.DATASETS.values():
        assert set(spec.downloads) <= set(spec.checksums), spec.name


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


@pytest.mark.parametrize("damage", ["cut short", "another"])
def test_a_wrong_checksum_is_refused_and_leaves_nothing(server, rectangles, tmp_path, damage):
    if damage == "another":
        server.files["/x/rectangles.zip"] = CONTENT[:-1] + b"?"
    else:
        server.drops = [300_000]
    with pytest.raises(data.DataFileError, match=r"rectangles\.zip: sha1 of what came is .* removed"):
        data.fetch("rectangles", tmp_path, rectangles)
    assert left_behind(tmp_path) == []


def test_a_failed_download_leaves_what_was_there(server, rectangles, tmp_path):
    data.fetch("rectangles", tmp_path, rectangles)
    server.drops = [300_000]
    with pytest.raises(data.DataFileError):
        data.fetch("rectangles", tmp_path, rectangles, force=True)
    assert left_behind(tmp_path) == ["rectangles.zip"]
    assert (tmp_path / "rectangles" / "rectangles.zip").read_bytes() == CONTENT


def test_an_address_without_the_file(server, rectangles, tmp_path):
    with pytest.raises(data.DownloadError, match=r"the download failed .HTTP Error 404"):
        data.fetch("rectangles", tmp_path, server.url + "/nowhere")
    assert left_behind(tmp_path) == []


def test_nobody_answers(small, tmp_path):
    with pytest.raises(data.DownloadError, match="the download failed"):
        data.fetch("rectangles", tmp_path, "http://127.0.0.1:9/")


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

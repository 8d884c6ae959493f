# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.libraries`; that a wheel carries them is shown by `make test-wheel`."""

import memlift


def test_the_named_folder_comes_first_and_what_is_missing_is_left_out(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MEMLIFT_DROPINS", str(tmp_path))
    (tmp_path / "libmemlift_z.so").touch()
    found = memlift.libraries()
    assert found["libz"] == tmp_path / "libmemlift_z.so"
    assert all(path.is_file() for path in found.values())

"""Packs the program into a wheel.

Arguments: PROGRAM VERSION SUMMARY FOLDER. The name of the wheel in FOLDER is printed. The wheel is for any Python and for the
glibc whose newest symbols the program uses; nothing is compiled and nothing is fetched.
"""

import base64
import hashlib
import re
import sys
import zipfile
from pathlib import Path

program, version, summary, folder = sys.argv[1:]
here, binary = Path(__file__).parent, Path(program).read_bytes()
glibc = max((int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)\0", binary)), default=17)
tag = f"py3-none-manylinux_2_{glibc}_x86_64"
info = f"loongforge-{version}.dist-info"
metadata = f"""Metadata-Version: 2.1
Name: loongforge
Version: {version}
Summary: {summary}
License: Apache-2.0
Requires-Python: >=3.10
Requires-Dist: torch==2.11.0
Description-Content-Type: text/markdown

{(here.parent.parent / "README.md").read_text()}"""
files = {
    "loongforge/__init__.py": b"",
    "loongforge/__main__.py": b"from loongforge.launcher import main\n\nmain()\n",
    "loongforge/launcher.py": (here / "launcher.py").read_bytes(),
    "loongforge/bin/loongforge": binary,
    f"{info}/METADATA": metadata.encode(),
    f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: loongforge\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
    f"{info}/entry_points.txt": b"[console_scripts]\nloongforge = loongforge.launcher:main\n",
    f"{info}/licenses/LICENSE": (here.parent.parent / "LICENSE").read_bytes(),
}
record = []
for name, content in files.items():
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    record.append(f"{name},sha256={digest},{len(content)}\n")
record.append(f"{info}/RECORD,,\n")
files[f"{info}/RECORD"] = "".join(record).encode()
wheel = Path(folder) / f"loongforge-{version}-{tag}.whl"
wheel.parent.mkdir(parents=True, exist_ok=True)
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
    for name, content in files.items():
        entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
        entry.external_attr = (0o100755 if "/bin/" in name else 0o100644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(entry, content)
print(wheel)

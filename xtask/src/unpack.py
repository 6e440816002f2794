"""Copies chosen members of a wheel into a folder.

Arguments: WHEEL FOLDER VERSION MEMBER...; a member that ends in "*" is a prefix. Exit status 3 says that
the wheel is damaged, 4 that it is not the one expected. Members are streamed: the largest is 451 MB.
"""
import os
import shutil
import sys
import zipfile
import zlib

wheel, folder, version, *wanted = sys.argv[1:]


def matches(name, pattern):
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


try:
    with zipfile.ZipFile(wheel) as archive:
        members = [m for m in archive.infolist() if not m.is_dir() and ".." not in m.filename.split("/")]
        metadata = next((m for m in members if m.filename.endswith(".dist-info/METADATA")), None)
        text = archive.read(metadata).decode("utf-8", "replace") if metadata else ""
        found = next((line[9:] for line in text.splitlines() if line.startswith("Version: ")), "unknown")
        if found.split("+")[0] != version:
            sys.exit(print("the wheel is version %s, not %s" % (found, version), file=sys.stderr) or 4)
        for pattern in wanted:
            chosen = [m for m in members if matches(m.filename, pattern)]
            if not chosen:
                sys.exit(print("the wheel has no %s" % pattern, file=sys.stderr) or 4)
            for member in chosen:
                target = os.path.join(folder, member.filename)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with archive.open(member) as source, open(target, "wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
except (zipfile.BadZipFile, zlib.error, EOFError) as error:
    sys.exit(print("the wheel is damaged: %s" % error, file=sys.stderr) or 3)
except OSError as error:
    sys.exit("cannot unpack: %s" % error)

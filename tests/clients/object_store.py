"""An S3 server of the package moto for tests, and what boto3 sees in it.

    python object_store.py BUCKET        prints the server's port, serves until its input ends
    python object_store.py --list URL BUCKET    prints its objects as JSON: name, bytes, SHA-256
    python object_store.py --put URL BUCKET KEY FILE
"""

import hashlib
import json
import sys

import boto3


def client(url):
    return boto3.client("s3", endpoint_url=url, region_name="us-east-1")


def listed(url, bucket):
    s3 = client(url)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    for name in [entry["Key"] for page in pages for entry in page.get("Contents", [])]:
        body = s3.get_object(Bucket=bucket, Key=name)["Body"].read()
        yield {"name": name, "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}


def main(arguments):
    if arguments[0] == "--list":
        print(json.dumps(list(listed(arguments[1], arguments[2]))))
    elif arguments[0] == "--put":
        url, bucket, key, file = arguments[1:]
        client(url).upload_file(file, bucket, key)
    else:
        from moto.server import ThreadedMotoServer

        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        client(f"http://{host}:{port}").create_bucket(Bucket=arguments[0])
        print(port, flush=True)
        sys.stdin.read()
        server.stop()


main(sys.argv[1:])

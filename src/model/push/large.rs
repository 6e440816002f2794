//! Files that are stored by their hash (Git LFS): those that the hub lacks are sent, whole or in parts, and each is verified.

use super::error::PushError;
use super::files::PushFile;
use super::http::{Client, Sent, expect_success};
use serde_json::{Value, json};
use std::fs::File;

const LFS: &str = "application/vnd.git-lfs+json";
/// Parts of a file.
const MAX_PARTS: u64 = 10_000;

/// Uploads those of `files`, each with its SHA-256, that the hub lacks; returns the bytes that were sent.
///
/// # Errors
/// The hub refuses one, or cannot be reached.
pub fn upload(
    client: &Client,
    id: &str,
    revision: &str,
    files: &[(&PushFile, String)],
    progress: &mut dyn FnMut(String),
) -> Result<u64, PushError> {
    let what = format!("asking where to upload files of {id}");
    let objects: Vec<Value> = files.iter().map(|(file, oid)| json!({"oid": oid, "size": file.bytes})).collect();
    let body = json!({"operation": "upload", "transfers": ["basic", "multipart"], "hash_algo": "sha256", "objects": objects,
        "ref": {"name": revision}});
    let answer = client.post(
        &what,
        &client.api(&format!("/{id}.git/info/lfs/objects/batch")),
        LFS,
        body.to_string().as_bytes(),
    )?;
    let mut sent = 0;
    for (file, oid) in files {
        let told = answer["objects"].as_array().into_iter().flatten().find(|told| told["oid"] == *oid);
        let wrong = |reason: String| PushError::Answer { what: format!("uploading {}", file.name), reason };
        let told = told.ok_or_else(|| wrong("the file's hash is missing".to_owned()))?;
        if let Some(error) = told["error"]["message"].as_str() {
            let status = told["error"]["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(0);
            return Err(PushError::Refused {
                what: format!("uploading {}", file.name),
                status,
                reason: error.to_owned(),
            });
        }
        let Some(action) = told["actions"].get("upload").filter(|action| action.is_object()) else {
            progress(format!("{}: the hub has it", file.name));
            continue;
        };
        progress(format!("{}: {} bytes", file.name, file.bytes));
        send(client, file, oid, action)?;
        if let Some(verify) = told["actions"]["verify"]["href"].as_str() {
            let body = json!({"oid": oid, "size": file.bytes});
            client.post(&format!("verifying {}", file.name), verify, LFS, body.to_string().as_bytes())?;
        }
        sent += file.bytes;
    }
    Ok(sent)
}

fn send(client: &Client, file: &PushFile, oid: &str, action: &Value) -> Result<(), PushError> {
    let what = format!("uploading {}", file.name);
    let wrong = |reason: String| PushError::Answer { what: what.clone(), reason };
    let href = action["href"].as_str().ok_or_else(|| wrong("the address is missing".to_owned()))?;
    let io = |source| PushError::Io { path: file.path.clone(), source };
    let open = File::open(&file.path).map_err(io)?;
    let now = open.metadata().map_err(io)?.len();
    if now != file.bytes {
        return Err(io(std::io::Error::other(format!("has {now} bytes, but had {} when it was hashed", file.bytes))));
    }
    let headers = action["header"].as_object();
    let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
    let chunk = headers.and_then(|headers| headers.get("chunk_size")).map(text);
    let Some(chunk) = chunk else {
        let headers: Vec<(String, String)> =
            headers.into_iter().flatten().map(|(name, value)| (name.clone(), text(value))).collect();
        let answer = client.send(&what, "PUT", href, &headers, Sent::Part(&open, 0, file.bytes))?;
        return expect_success(&what, answer).map(drop);
    };
    let chunk: u64 =
        chunk.parse().ok().filter(|chunk| *chunk > 0).ok_or_else(|| wrong(format!("a part size of {chunk}")))?;
    let count = file.bytes.div_ceil(chunk);
    if count > MAX_PARTS {
        return Err(wrong(format!("{count} parts (the limit is {MAX_PARTS})")));
    }
    // Addresses of parts stand under their numbers, with zeros before them.
    let mut addresses: Vec<(u64, String)> =
        headers.into_iter().flatten().filter_map(|(name, value)| Some((name.parse().ok()?, text(value)))).collect();
    addresses.sort();
    if addresses.iter().map(|(number, _)| *number).ne(1..=count) {
        return Err(wrong(format!("{} addresses for {count} parts", addresses.len())));
    }
    let mut parts = Vec::new();
    for (number, address) in addresses {
        let begin = (number - 1) * chunk;
        let part = Sent::Part(&open, begin, chunk.min(file.bytes - begin));
        let answer = expect_success(&what, client.send(&what, "PUT", &address, &[], part)?)?;
        let tag = answer.headers().get("etag").and_then(|tag| tag.to_str().ok());
        let tag = tag.ok_or_else(|| wrong(format!("no ETag of part {number}")))?;
        parts.push(json!({"partNumber": number, "etag": tag}));
    }
    client.post(&what, href, LFS, json!({"oid": oid, "parts": parts}).to_string().as_bytes()).map(drop)
}

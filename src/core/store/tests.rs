//! Objects of a store in memory.

use super::client::{failed, hide};
use super::*;
use object_store::memory::InMemory;
use std::sync::Arc;

#[test]
fn large_objects_are_sent_and_fetched_in_parts() {
    register("s3://parts", Arc::new(InMemory::new()));
    let bytes: Vec<u8> = (0..40_000_001u32).map(|at| (at / 7) as u8).collect();
    send("s3://parts/a/large", &mut &bytes[..], bytes.len() as u64).unwrap();
    send("s3://parts/a/b/small", &mut &b"x"[..], 1).unwrap();
    let (mut back, mut most) = (Vec::new(), 0);
    let mut sink = |part: &[u8]| {
        most = most.max(part.len());
        back.extend_from_slice(part);
        Ok(())
    };
    fetch("s3://parts/a/large", bytes.len() as u64, &mut sink).unwrap();
    assert!(back == bytes && most == 16 << 20);
    let names: Vec<_> = list("s3://parts/a").unwrap().into_iter().map(|object| (object.name, object.bytes)).collect();
    assert_eq!(names, [("b/small".to_owned(), 1), ("large".to_owned(), 40_000_001)]);
    assert_eq!(list_folders("s3://parts/a/").unwrap(), ["b"]);
    assert_eq!(get("s3://parts/a/none", 10).unwrap(), None);
    assert!(get("s3://parts/a/large", 10).unwrap_err().to_string().contains("more than the limit of 10"));
    // A file that became shorter is not there, and neither is one that cannot be read.
    let short = send("s3://parts/a/short", &mut &bytes[..], bytes.len() as u64 + 1);
    assert!(short.unwrap_err().to_string().contains("the file was truncated"));
    assert_eq!(get("s3://parts/a/short", 10).unwrap(), None);
    delete("s3://parts/a/large").unwrap();
    delete("s3://parts/a/large").unwrap();
    assert_eq!(list("s3://parts/").unwrap().len(), 1);
}

#[test]
fn secrets_are_not_told() {
    let variables =
        [("AWS_SECRET_ACCESS_KEY", "abcdefgh"), ("AWS_REGION", "us-east-1"), ("AZURE_STORAGE_SAS_TOKEN", "x")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(hide("us-east-1: abcdefgh is no key x", variables.into_iter()), "us-east-1: … is no key x");
}

#[test]
fn an_outage_is_told_from_a_refusal() {
    let generic = |text: &str| object_store::Error::Generic { store: "S3", source: text.into() };
    let refusals = [
        "Server returned non-2xx status code: 403 Forbidden",
        "NoSuchBucket",
        "Error performing PUT http://169.254.169.254/latest/api/token in 3s - HTTP error: error sending request",
        "Error performing GET http://metadata.google.internal/computeMetadata/v1 in 3s - HTTP error: connect",
    ]
    .map(generic);
    let missing = object_store::Error::NotFound { path: "a".into(), source: "gone".into() };
    for error in refusals.iter().chain([&missing]) {
        assert!(!failed("s3://bucket/a", error).is_outage, "{error}");
    }
    assert!(failed("s3://bucket/a", &generic("operation timed out")).is_outage);
    for code in ["503", "429 Too Many Requests", "408 Request Timeout"] {
        let error = generic(&format!("Server returned non-2xx status code: {code}"));
        assert!(failed("https://host/a", &error).is_outage, "{error}");
    }
    // Settings of which no client can be made.
    let error = get("azure://c/x", 10).unwrap_err();
    assert!(!error.is_outage, "{error}");
}

//! URLs of object stores.

/// Schemes of stores that can be written. `http` is read alone.
const SCHEMES: [&str; 8] = ["s3://", "s3a://", "gs://", "az://", "azure://", "abfs://", "abfss://", "adl://"];

/// Returns whether a text is the URL of an object store, by its scheme.
pub fn is_store_url(text: &str) -> bool {
    SCHEMES.iter().any(|scheme| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
}

/// # Errors
/// Returns the reason why the text is not the URL of a folder in an object store.
pub fn check_store_url(text: &str) -> Result<(), String> {
    if !is_store_url(text) {
        return Err("is not the URL of an object store: write s3://BUCKET/FOLDER, gs://… or az://…".to_owned());
    }
    let (scheme, rest) = text.split_once("://").unwrap_or_default();
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    // Of Azure the container stands before the account.
    let user = host.rsplit_once('@').map(|(user, _)| user);
    let is_azure = scheme.to_ascii_lowercase().starts_with('a');
    if user.is_some_and(|user| user.contains(':') || !is_azure) {
        return Err("contains credentials: put them into the environment".to_owned());
    }
    if host.is_empty() {
        return Err("names no bucket".to_owned());
    }
    let strange = |part: &str| matches!(part, "." | ".." | "");
    if text.contains(['?', '#', '*', '{', '\\'])
        || path.trim_end_matches('/').split('/').skip_while(|_| path.is_empty()).any(strange)
    {
        return Err("must be a bucket and a folder, without `?`, `#`, `*`, `{` or empty names".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_bucket_and_a_folder() {
        for url in [
            "s3://bucket",
            "s3://bucket/",
            "S3://bucket/a/b",
            "gs://b/runs/",
            "abfss://container@account.dfs.core.windows.net/x",
        ] {
            assert_eq!(check_store_url(url), Ok(()), "{url}");
        }
        for (url, part) in [
            ("runs/a", "is not the URL of an object store"),
            ("http://host/a", "is not the URL of an object store"),
            ("s3://", "no bucket"),
            ("s3:///a", "no bucket"),
            ("s3://key:secret@bucket/a", "credentials"),
            ("s3://key@bucket/a", "credentials"),
            ("az://container:secret@account/a", "credentials"),
            ("s3://b/a/../c", "must be a bucket and a folder"),
            ("s3://b//a", "must be a bucket and a folder"),
            ("s3://b/a?x=1", "must be a bucket and a folder"),
        ] {
            let reason = check_store_url(url).unwrap_err();
            assert!(reason.contains(part) && !reason.contains("secret"), "{url}: {reason}");
        }
    }
}

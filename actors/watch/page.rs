//! The page of a running job, and the standalone file of a finished run.

use crate::random;
use loongforge_core::text::base64;
use serde_json::{Value, json};

const PAGE: &str = include_str!("page.html");
const PLOTS: &str = include_str!("plots.js");

/// Returns the page, and the nonce of its scripts and styles.
pub(super) fn page() -> (String, String) {
    let nonce = random::token();
    (PAGE.replace("PLOTS\n", PLOTS).replace("NONCE", &nonce), nonce)
}

/// Returns a page without a server: `status` and `history` as in `/status.json` and `/history.json`, and the newest sheet of
/// samples as PNG. It loads nothing and runs no script but its own.
pub fn still_page(status: &Value, history: &Value, sheet: Option<&[u8]>) -> String {
    let mut kept = json!({ "/status.json": status, "/history.json": history });
    if let Some(png) = sheet {
        kept["/samples.png"] = format!("data:image/png;base64,{}", base64(png)).into();
    }
    // Nothing in it ends the script.
    let kept = kept.to_string().replace('<', "\\u003c");
    let (page, nonce) = page();
    let policy = format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'nonce-{nonce}'; style-src \
         'nonce-{nonce}'; img-src data:; base-uri 'none'; form-action 'none'\">\n<title>"
    );
    let page = page.replacen("<title>", &policy, 1);
    page.replacen("const STILL = null;", &format!("const STILL = {kept};"), 1)
}

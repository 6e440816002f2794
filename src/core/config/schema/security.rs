//! Handling of untrusted data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Handling of untrusted data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Security {
    /// Pictures and videos are decoded in processes that may do nothing else, so that a file that crashes a decoder is
    /// one bad sample: `auto`, where such a process can be started; `off`: in the data actor itself.
    pub sandbox: SandboxMode,
}

/// Says whether decoders have processes of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum SandboxMode {
    #[default]
    Auto,
    Off,
}

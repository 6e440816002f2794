//! Handling of untrusted data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Handling of untrusted data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Security {
    /// Decode pictures, videos and recordings in sandboxed processes that can do nothing else, so that a file that crashes a decoder
    /// is only one bad sample: `auto`, where such a process can be started; `off`: in the data actor itself.
    pub sandbox: SandboxMode,
}

/// The choice whether decoders run in processes of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum SandboxMode {
    #[default]
    Auto,
    Off,
}

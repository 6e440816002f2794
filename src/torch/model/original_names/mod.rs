//! The names of tensors in files of models, where they differ from ours: the releases of Wan and the single files made of them, which
//! have a table each that is read in both directions, and policies.

mod deepseek;
mod fastwam;
mod florence;
mod fresh;
mod groot;
mod modules;
mod policy;
mod table;
mod vae;
mod wan;

use std::sync::LazyLock;

pub use self::deepseek::DeepseekV4Names;
pub use self::fastwam::FastwamNames;
pub use self::florence::FlorenceNames;
pub use self::fresh::FreshNames;
pub use self::groot::GrootNames;
pub use self::modules::ModuleNames;
pub use self::policy::PolicyNames;
use self::table::Table;

/// The beginning of names in files that ComfyUI saves.
pub const COMFY_PREFIX: &str = "model.diffusion_model.";

static WAN: LazyLock<Table> = LazyLock::new(wan::table);
static WAN_VAE_2_1: LazyLock<Table> = LazyLock::new(vae::table_2_1);
static WAN_VAE_2_2: LazyLock<Table> = LazyLock::new(vae::table_2_2);

/// A way to name the tensors of one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// The names of Diffusers, which are ours.
    Diffusers,
    /// The transformer of Wan's own releases.
    Wan,
    /// The autoencoder of Wan 2.1's own release, and Qwen-Image's in files for ComfyUI.
    WanVae21,
    /// The autoencoder of Wan 2.2's own release.
    WanVae22,
}

impl Naming {
    /// Tells the naming of a file by names that only one of them has; `has` says whether the file has a tensor.
    pub fn of_file(has: impl Fn(&str) -> bool) -> Self {
        match () {
            () if has("blocks.0.self_attn.q.weight") => Self::Wan,
            () if has("decoder.upsamples.0.upsamples.0.residual.0.gamma") => Self::WanVae22,
            () if has("decoder.head.2.weight") => Self::WanVae21,
            () => Self::Diffusers,
        }
    }

    /// Returns Diffusers' name of a module, parameter or tensor; `None` where the network has no such one.
    pub fn to_diffusers(self, name: &str) -> Option<String> {
        self.rename(name, [0, 1])
    }

    /// Returns the name in this naming of what Diffusers calls `name`; `None` where the network has no such one.
    pub fn from_diffusers(self, name: &str) -> Option<String> {
        self.rename(name, [1, 0])
    }

    fn rename(self, name: &str, [from, to]: [usize; 2]) -> Option<String> {
        let table = match self {
            Self::Diffusers => return Some(name.to_owned()),
            Self::Wan => &*WAN,
            Self::WanVae21 => &*WAN_VAE_2_1,
            Self::WanVae22 => &*WAN_VAE_2_2,
        };
        table.iter().find_map(|row| replaced(name, &row[from], &row[to]))
    }
}

/// Replaces the beginning of `name` that fits `from`, in whole segments.
fn replaced(name: &str, from: &str, to: &str) -> Option<String> {
    let mut rest = name.split('.');
    let mut numbers = Vec::new();
    for wanted in from.split('.') {
        let segment = rest.next()?;
        match wanted {
            "*" => numbers.push(segment.parse::<u32>().ok().map(|_| segment)?),
            _ if wanted == segment => {}
            _ => return None,
        }
    }
    let mut numbers = numbers.into_iter();
    let begin = to.split('.').map(|segment| if segment == "*" { numbers.next().unwrap_or(segment) } else { segment });
    Some(begin.chain(rest).collect::<Vec<_>>().join("."))
}

#[cfg(test)]
mod tests;

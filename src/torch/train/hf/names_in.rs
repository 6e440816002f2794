//! The names that the model has for the tensors of a file.

use super::file::TensorFile;
use crate::model::{
    COMFY_PREFIX, DeepseekV4Names, FastwamNames, FlorenceNames, FreshNames, GrootNames, ModuleNames, Naming,
    PolicyNames,
};
use loongforge_core::data::Component;

/// The model's names of the tensors of a file. The default has the names of the file.
#[derive(Clone, Copy, Default)]
pub(super) struct NamesIn {
    /// The network that they are of.
    component: Option<Component>,
    /// The prefix that names have in the file, and not in the network.
    prefix: &'static str,
    naming: Option<Naming>,
    policy: Option<PolicyNames>,
    florence: Option<FlorenceNames>,
    groot: Option<GrootNames>,
    deepseek: Option<DeepseekV4Names>,
    fresh: Option<FreshNames>,
    modules: Option<ModuleNames>,
    fastwam: Option<FastwamNames>,
}

impl NamesIn {
    /// Returns the names in files of one network, which may be Diffusers' or those of its first release.
    pub fn of(files: &[TensorFile], component: Option<Component>) -> Self {
        let has = |name: &str| files.iter().any(|file| file.tensors().contains_key(name));
        let begins = |file: &TensorFile| file.tensors().keys().any(|name| name.starts_with(COMFY_PREFIX));
        let prefix = if files.iter().any(begins) { COMFY_PREFIX } else { "" };
        let naming = Naming::of_file(|name| has(&format!("{prefix}{name}")));
        Self { component, prefix, naming: Some(naming), ..Self::default() }
    }

    /// Returns the names in files of a whole model that is no diffusion model.
    pub fn of_model(files: &[TensorFile]) -> Self {
        let names = || files.iter().flat_map(|file| file.tensors().keys().map(String::as_str));
        Self {
            policy: PolicyNames::of(names()),
            florence: FlorenceNames::of(names()),
            groot: GrootNames::of(names()),
            deepseek: DeepseekV4Names::of(names()),
            fresh: FreshNames::of(names()),
            modules: ModuleNames::of(names()),
            fastwam: FastwamNames::of(names()),
            ..Self::default()
        }
    }

    /// Returns the model's name. A name that no table knows stays as it is: it is none of the model's.
    pub fn ours(&self, name: &str) -> String {
        // A scale is called as its weight is.
        for (theirs, scale) in [(".scale_weight", "_scale"), (".weight_scale", "_scale")] {
            if let Some(module) = name.strip_suffix(theirs) {
                return format!("{}{scale}", self.ours(&format!("{module}.weight")));
            }
        }
        if let Some(policy) = self.policy {
            return policy.ours(name);
        }
        if let Some(florence) = self.florence {
            return florence.ours(name);
        }
        if let Some(groot) = self.groot {
            return groot.ours(name);
        }
        if let Some(deepseek) = self.deepseek {
            return deepseek.ours(name);
        }
        if let Some(fresh) = self.fresh {
            return fresh.ours(name);
        }
        if let Some(modules) = self.modules {
            return modules.ours(name);
        }
        if let Some(fastwam) = self.fastwam {
            return fastwam.ours(name);
        }
        let inner = name.strip_prefix(self.prefix).unwrap_or(name);
        let inner = self.naming.and_then(|naming| naming.to_diffusers(inner)).unwrap_or_else(|| inner.to_owned());
        match self.component {
            Some(component) => format!("{}.{inner}", component.name),
            None => inner,
        }
    }
}

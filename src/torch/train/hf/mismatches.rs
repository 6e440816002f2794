//! Lists the parts of a folder that do not fit a model, as a user reads them.

use std::fmt;

use super::dtype::Dtype;
use super::pattern::collapse;

/// The tensors that do not fit, by cause. Shapes and types are the folder's first, the model's second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mismatches {
    pub missing: Vec<(String, Vec<i64>)>,
    pub misshaped: Vec<(String, Vec<i64>, Vec<i64>)>,
    pub untyped: Vec<(String, Dtype)>,
    pub extra: Vec<(String, Vec<i64>)>,
    pub hints: Vec<String>,
}

impl fmt::Display for Mismatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = self.missing.iter().map(|(name, shape)| (name.as_str(), format!("model {shape:?}")));
        section(f, "missing", missing)?;
        let both = |found: &[i64], want: &[i64]| format!("checkpoint {found:?}, model {want:?}");
        let misshaped = self.misshaped.iter().map(|(name, found, want)| (name.as_str(), both(found, want)));
        section(f, "shape mismatch", misshaped)?;
        let untyped =
            self.untyped.iter().map(|(name, dtype)| (name.as_str(), format!("is {dtype}, but must be a float")));
        section(f, "unsupported type", untyped)?;
        let extra = self.extra.iter().map(|(name, shape)| (name.as_str(), format!("checkpoint {shape:?}")));
        section(f, "unexpected", extra)?;
        self.hints.iter().try_for_each(|hint| writeln!(f, "  hint: {hint}"))
    }
}

fn section<'a>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    entries: impl Iterator<Item = (&'a str, String)>,
) -> fmt::Result {
    let lines = collapse(entries);
    if lines.is_empty() {
        return Ok(());
    }
    let total: usize = lines.iter().map(|(.., count)| count).sum();
    writeln!(f, "  {title} ({total}):")?;
    let width = lines.iter().take(MAX_LINES).map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
    for (name, what, count) in lines.iter().take(MAX_LINES) {
        let count = if *count > 1 { format!("  ({count} tensors)") } else { String::new() };
        writeln!(f, "    {name:width$}  {what}{count}")?;
    }
    match lines.len().saturating_sub(MAX_LINES) {
        0 => Ok(()),
        more => writeln!(f, "    and {more} more"),
    }
}

/// Lines of one cause that are shown.
const MAX_LINES: usize = 12;

//! `loongforge parity --layout`: a fixture's steps in real processes, one a rank, against one process.

use anyhow::{Context, anyhow, bail};
use loongforge_core::config::{ContextAttention, Layout};
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::engine::parity::{PoolLayouts, alone, on_rank};
use loongforge_torch::train::parity::{compare_steps, has_encoder};
use std::fmt;
use std::path::Path;
use std::process::{Child, Command};
use std::str::FromStr;
use std::time::Duration;

/// Sets how long a collective waits for a process that does not come.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Layouts of both pools, as `POOL.AXIS=SIZE,…`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layouts(PoolLayouts);

const AXES: &str =
    "foundation.dp, .tp, .sp, .ep, .pp, .vp, .cp, .context, .chunk and .zero, encoder.dp, .tp and .zero are";

impl FromStr for Layouts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut layouts = PoolLayouts::default();
        let PoolLayouts { foundation, splits, encoder, encoder_zero } = &mut layouts;
        for axis in text.split(',') {
            let wrong = || format!("`{axis}` is not POOL.AXIS=SIZE, such as foundation.tp=2");
            let (key, value) = axis.split_once('=').ok_or_else(wrong)?;
            if key == "foundation.context" {
                splits.context = match value {
                    "ring" => ContextAttention::Ring,
                    "ulysses" => ContextAttention::Ulysses,
                    _ => return Err(format!("{axis}: ring or ulysses")),
                };
                continue;
            }
            let size: usize = value.parse().map_err(|_| wrong())?;
            let place = match key {
                "foundation.dp" => &mut foundation.dp,
                "foundation.tp" => &mut foundation.tp,
                "foundation.ep" => &mut foundation.ep,
                "foundation.pp" => &mut foundation.pp,
                "foundation.cp" => &mut foundation.cp,
                "foundation.vp" => &mut splits.virtual_stages,
                "foundation.chunk" => &mut splits.chunk_tokens,
                "foundation.zero" => &mut splits.zero,
                "foundation.sp" => {
                    splits.sequence_parallel = size == 1;
                    continue;
                }
                "encoder.dp" => &mut encoder.dp,
                "encoder.tp" => &mut encoder.tp,
                "encoder.zero" => encoder_zero,
                _ => return Err(format!("{key} is not an axis here: {AXES}")),
            };
            *place = size;
        }
        layouts.check().map(|()| Self(layouts))
    }
}

/// Writes it as it is read.
impl fmt::Display for Layouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PoolLayouts { foundation, splits, encoder, encoder_zero } = self.0;
        let Layout { dp, pp, cp, tp, ep } = foundation;
        let sizes = [
            ("foundation.dp", dp, 1),
            ("foundation.pp", pp, 1),
            ("foundation.cp", cp, 1),
            ("foundation.tp", tp, 1),
            ("foundation.ep", ep, 1),
            ("foundation.sp", usize::from(splits.sequence_parallel), 0),
            ("foundation.vp", splits.virtual_stages, 1),
            ("foundation.chunk", splits.chunk_tokens, 0),
            ("foundation.zero", splits.zero, 0),
            ("encoder.dp", encoder.dp, 1),
            ("encoder.tp", encoder.tp, 1),
            ("encoder.zero", encoder_zero, 0),
        ];
        let given = sizes.iter().filter(|(_, size, default)| size != default);
        let mut words: Vec<String> = given.map(|(key, size, _)| format!("{key}={size}")).collect();
        if splits.context == ContextAttention::Ulysses {
            words.push("foundation.context=ulysses".into());
        }
        if words.is_empty() {
            words.push("foundation.dp=1".into());
        }
        f.pad(&words.join(","))
    }
}

/// Starts the layout's processes on a fixture and waits for them; whether the numbers are those of one process.
pub fn run(folder: &Path, layouts: Layouts) -> anyhow::Result<bool> {
    let place = tempfile::tempdir().context("a folder for the processes to meet in")?;
    let program = std::env::current_exe().context("this program's path")?;
    let start = |rank: usize| -> anyhow::Result<Child> {
        let mut command = Command::new(&program);
        command.arg("parity").arg(folder).args(["--layout", &layouts.to_string(), "--rank", &rank.to_string()]);
        command.arg("--meeting").arg(place.path());
        command.spawn().with_context(|| program.display().to_string())
    };
    let ranks = (0..layouts.0.ranks(has_encoder(folder)?)).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let mut ok = true;
    for mut rank in ranks {
        ok &= rank.wait()?.success();
    }
    Ok(ok)
}

/// One of the processes. The first one compares and prints.
pub fn run_rank(folder: &Path, Layouts(layouts): Layouts, rank: usize, meeting: &Path) -> anyhow::Result<bool> {
    set_intra_op_threads(1);
    let found = on_rank(folder, meeting, &layouts, rank, TIMEOUT).map_err(|error| anyhow!("rank {rank}: {error}"))?;
    let Some(found) = found else { return Ok(true) };
    let place = tempfile::tempdir().context("a folder for one process")?;
    let alone = alone(folder, place.path(), &layouts).map_err(|error| anyhow!("one process: {error}"))?;
    let report = compare_steps(&found, &alone);
    let ranks = layouts.ranks(has_encoder(folder)?);
    println!("{} on {} ({ranks} processes)\n{report}", folder.display(), Layouts(layouts));
    if report.rows.is_empty() {
        bail!("nothing was compared");
    }
    Ok(report.is_ok())
}

#[cfg(test)]
mod tests {
    use super::Layouts;

    #[test]
    fn layouts_are_read_and_written() {
        let text = "foundation.tp=2,foundation.dp=4,foundation.ep=2,foundation.sp=1,foundation.zero=3,encoder.tp=2";
        let layouts: Layouts = text.parse().unwrap();
        assert_eq!((layouts.0.ranks(false), layouts.0.ranks(true), layouts.0.splits.zero), (8, 10, 3));
        assert!(layouts.0.splits.sequence_parallel);
        for text in [text, "foundation.cp=2,foundation.context=ulysses,encoder.dp=2,encoder.zero=1", "foundation.dp=1"]
        {
            let layouts: Layouts = text.parse().unwrap();
            assert_eq!(layouts.to_string().parse(), Ok(layouts));
        }
        let wrong = [
            "tp=2",
            "foundation.tp",
            "foundation.tp=0",
            "foundation.ep=2",
            "foundation.zero=4",
            "foundation.context=1",
            "foundation.vp=2",
            "encoder.zero=2",
        ];
        for wrong in wrong {
            assert!(wrong.parse::<Layouts>().is_err(), "{wrong}");
        }
    }
}

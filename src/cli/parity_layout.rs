//! `loongforge parity --layout`: a fixture's steps in real processes, one a rank, against one process.

use anyhow::{Context, bail, ensure};
use loongforge_core::config::Layout;
use loongforge_torch::comm::Mesh;
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::train::parity::{compare_steps, steps_on};
use std::path::Path;
use std::process::{Child, Command};
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

/// How long a collective waits for a process that does not come.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The foundation's layout, and whether it is sequence parallel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLayout {
    layout: Layout,
    sequence: bool,
}

impl FromStr for PoolLayout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut layout, mut sequence) = (Layout::default(), false);
        for axis in text.split(',') {
            let wrong = || format!("`{axis}` is not POOL.AXIS=SIZE, such as foundation.tp=2");
            let (key, size) = axis.split_once('=').ok_or_else(wrong)?;
            let size: usize = size.parse().map_err(|_| wrong())?;
            let place = match key {
                "foundation.dp" => &mut layout.dp,
                "foundation.tp" => &mut layout.tp,
                "foundation.ep" => &mut layout.ep,
                "foundation.sp" => {
                    sequence = size == 1;
                    continue;
                }
                _ => return Err(format!("{key} is not an axis here: foundation.dp, .tp, .sp and .ep are")),
            };
            *place = size;
        }
        if layout.dp * layout.tp * layout.ep == 0 || layout.dp % layout.ep != 0 {
            return Err("every axis has a rank at least, and foundation.ep divides foundation.dp".to_owned());
        }
        Ok(Self { layout, sequence })
    }
}

impl PoolLayout {
    fn to_arg(self) -> String {
        let Layout { dp, tp, ep, .. } = self.layout;
        format!("foundation.dp={dp},foundation.tp={tp},foundation.ep={ep},foundation.sp={}", u8::from(self.sequence))
    }
}

/// Starts the layout's processes on a fixture and waits for them; whether the numbers are those of one process.
pub fn run(folder: &Path, layout: PoolLayout) -> anyhow::Result<bool> {
    let place = tempfile::tempdir().context("a folder for the processes to meet in")?;
    let program = std::env::current_exe().context("this program's path")?;
    let start = |rank: usize| -> anyhow::Result<Child> {
        let mut command = Command::new(&program);
        command.arg("parity").arg(folder).args(["--layout", &layout.to_arg(), "--rank", &rank.to_string()]);
        command.arg("--store").arg(place.path().join("store"));
        command.spawn().with_context(|| program.display().to_string())
    };
    let ranks = (0..layout.layout.ranks()).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let mut ok = true;
    for mut rank in ranks {
        ok &= rank.wait()?.success();
    }
    Ok(ok)
}

/// One of the processes. The first one compares and prints.
pub fn run_rank(folder: &Path, layout: PoolLayout, rank: usize, store: &Path) -> anyhow::Result<bool> {
    let PoolLayout { layout, sequence } = layout;
    ensure!(rank < layout.ranks(), "rank {rank} of {}", layout.ranks());
    set_intra_op_threads(1);
    let mesh = Mesh::join(store, "foundation", layout, rank, TIMEOUT)?;
    let found = steps_on(folder, Rc::new(mesh), sequence, layout.dp)?;
    if rank > 0 {
        return Ok(true);
    }
    let alone = steps_on(folder, Rc::new(Mesh::single()), false, layout.dp)?;
    let report = compare_steps(&found, &alone);
    let sequence = if sequence { ", sequence parallel" } else { "" };
    println!("{} on {layout}{sequence} ({} processes)\n{report}", folder.display(), layout.ranks());
    if report.rows.is_empty() {
        bail!("nothing was compared");
    }
    Ok(report.is_ok())
}

#[cfg(test)]
mod tests {
    use super::PoolLayout;

    #[test]
    fn layouts_are_read_and_written() {
        let layout: PoolLayout = "foundation.tp=2,foundation.dp=4,foundation.ep=2,foundation.sp=1".parse().unwrap();
        assert_eq!((layout.layout.ranks(), layout.sequence), (8, true));
        assert_eq!(layout.to_arg().parse(), Ok(layout));
        for wrong in ["tp=2", "foundation.tp", "foundation.tp=0", "foundation.ep=2"] {
            assert!(wrong.parse::<PoolLayout>().is_err(), "{wrong}");
        }
    }
}

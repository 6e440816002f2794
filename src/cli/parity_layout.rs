//! `loongforge parity --layout`: a fixture's steps in real processes, one a rank, against one process.

use anyhow::{Context, anyhow, bail};
use loongforge_core::config::{ContextAttention, Layout};
use loongforge_core::message::Tower;
use loongforge_torch::device::set_intra_op_threads;
use loongforge_torch::engine::parity::{EncoderLayout, PoolLayouts, alone, on_rank};
use loongforge_torch::train::parity::{ParityError, compare_steps, is_of_tokens, towers_of};
use std::fmt;
use std::path::Path;
use std::process::{Child, Command};
use std::str::FromStr;
use std::time::Duration;

/// The time that a collective waits for a process that does not come.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Layouts of the pools, as `POOL.AXIS=SIZE,…`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layouts(PoolLayouts);

const AXES: &str = "must be foundation.dp, .tp, .sp, .ep, .pp, .vp, .cp, .context, .chunk or .zero, or .dp, .tp or .zero of \
                    encoder or of a tower's own pool (vision, audio, text)";

impl FromStr for Layouts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut layouts = PoolLayouts::default();
        let PoolLayouts { foundation, splits, encoder, own } = &mut layouts;
        for axis in text.split(',') {
            let wrong = || format!("`{axis}` must have the form POOL.AXIS=SIZE, such as foundation.tp=2");
            let (key, value) = axis.split_once('=').ok_or_else(wrong)?;
            if key == "foundation.context" {
                splits.context = match value {
                    "ring" => ContextAttention::Ring,
                    "ulysses" => ContextAttention::Ulysses,
                    _ => return Err(format!("{axis}: must be ring or ulysses")),
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
                _ => {
                    let unknown = || format!("unknown axis {key}: {AXES}");
                    let (pool, axis) = key.split_once('.').ok_or_else(unknown)?;
                    let tower = Tower::ALL.into_iter().find(|tower| tower.name() == pool);
                    let pool = match tower {
                        Some(tower) => own[tower as usize].get_or_insert_default(),
                        None if pool == "encoder" => &mut *encoder,
                        None => return Err(unknown()),
                    };
                    match axis {
                        "dp" => &mut pool.layout.dp,
                        "tp" => &mut pool.layout.tp,
                        "zero" => &mut pool.zero,
                        _ => return Err(unknown()),
                    }
                }
            };
            *place = size;
        }
        layouts.check().map(|()| Self(layouts))
    }
}

/// Writes it as it is read.
impl fmt::Display for Layouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PoolLayouts { foundation, splits, encoder, own } = self.0;
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
        ];
        let given = sizes.iter().filter(|(_, size, default)| size != default);
        let mut words: Vec<String> = given.map(|(key, size, _)| format!("{key}={size}")).collect();
        let own = Tower::ALL.into_iter().filter_map(|tower| Some((tower.name(), own[tower as usize]?)));
        for (pool, EncoderLayout { layout, zero }) in own.chain([("encoder", encoder)]) {
            // A pool of its own is one even where nothing of it is split.
            if pool != "encoder" || layout.dp != 1 {
                words.push(format!("{pool}.dp={}", layout.dp));
            }
            words.extend((layout.tp != 1).then(|| format!("{pool}.tp={}", layout.tp)));
            words.extend((zero != 0).then(|| format!("{pool}.zero={zero}")));
        }
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
///
/// # Errors
/// Fails if the fixture is none of tokens, the layout names a tower that the model lacks, or a process cannot be started.
pub fn run(folder: &Path, layouts: Layouts) -> anyhow::Result<bool> {
    let place = tempfile::tempdir().context("cannot create a folder for the processes to meet in")?;
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let start = |rank: usize| -> anyhow::Result<Child> {
        let mut command = Command::new(&program);
        command.arg("parity").arg(folder).args(["--layout", &layouts.to_string(), "--rank", &rank.to_string()]);
        command.arg("--meeting").arg(place.path());
        command.spawn().with_context(|| program.display().to_string())
    };
    if !is_of_tokens(folder)? {
        return Err(ParityError::OfTokens("--layout").into());
    }
    let towers = towers_of(folder)?;
    layouts.0.check_towers(towers).map_err(|found| anyhow!("--layout: {found}"))?;
    let ranks = (0..layouts.0.ranks(towers)).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let mut ok = true;
    for mut rank in ranks {
        ok &= rank.wait()?.success();
    }
    Ok(ok)
}

/// One of the processes. The first one compares and prints.
///
/// # Errors
/// Fails if the rank or the one process that it is compared with fails, or nothing is compared.
pub fn run_rank(folder: &Path, Layouts(layouts): Layouts, rank: usize, meeting: &Path) -> anyhow::Result<bool> {
    set_intra_op_threads(1);
    let found = on_rank(folder, meeting, &layouts, rank, TIMEOUT).map_err(|error| anyhow!("rank {rank}: {error}"))?;
    let Some(found) = found else { return Ok(true) };
    let place = tempfile::tempdir().context("cannot create a folder for one process")?;
    let alone = alone(folder, place.path(), &layouts).map_err(|error| anyhow!("one process: {error}"))?;
    let report = compare_steps(&found, &alone);
    let ranks = layouts.ranks(towers_of(folder)?);
    println!("{} on {} ({ranks} processes)\n{report}", folder.display(), Layouts(layouts));
    if report.rows.is_empty() {
        bail!("nothing was compared");
    }
    Ok(report.is_ok())
}

#[cfg(test)]
mod tests {
    use super::{Layouts, Tower};

    #[test]
    fn layouts_are_read_and_written() {
        let text = "foundation.tp=2,foundation.dp=4,foundation.ep=2,foundation.sp=1,foundation.zero=3,encoder.tp=2";
        let layouts: Layouts = text.parse().unwrap();
        let ranks = |layouts: Layouts, towers: &[Tower]| layouts.0.ranks(towers.iter().copied().collect());
        let of_encoder = [ranks(layouts, &[]), ranks(layouts, &[Tower::Vision])];
        assert_eq!((of_encoder, layouts.0.splits.zero), ([8, 10], 3));
        assert!(layouts.0.splits.sequence_parallel);
        let own: Layouts = "vision.tp=2,audio.dp=1,foundation.tp=2".parse().unwrap();
        let both = [Tower::Vision, Tower::Audio];
        assert_eq!((ranks(own, &both), own.0.check_towers(both.into_iter().collect())), (5, Ok(())));
        let missing = own.0.check_towers([Tower::Vision].into_iter().collect());
        assert_eq!(missing, Err("the model has no audio tower".into()));
        for text in [
            text,
            "foundation.cp=2,foundation.context=ulysses,encoder.dp=2,encoder.zero=1",
            "vision.tp=2,audio.dp=1,encoder.dp=3",
            "foundation.dp=1",
        ] {
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
            "vision.zero=2",
            "vision.pp=2",
            "sound.tp=2",
        ];
        for wrong in wrong {
            assert!(wrong.parse::<Layouts>().is_err(), "{wrong}");
        }
    }
}

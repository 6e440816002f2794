//! Peak arithmetic of devices, for the model FLOPs utilization. Where a device is not known nothing is guessed.

use std::path::Path;

/// Part of a GPU's name, its dense bf16 and its float32 peak in TFLOP/s without TF32, from the makers' data sheets. The
/// first that fits counts.
const PEAKS: [(&str, f64, f64); 16] = [
    ("GB200", 2500.0, 80.0),
    ("B200", 2250.0, 80.0),
    ("GH200", 989.4, 66.9),
    ("H200 NVL", 835.5, 60.0),
    ("H200", 989.4, 66.9),
    ("H100 NVL", 835.5, 60.0),
    ("H100 PCIe", 756.0, 51.2),
    ("H100", 989.4, 66.9),
    ("H800", 989.4, 66.9),
    ("H20", 148.0, 44.0),
    ("A100", 312.0, 19.5),
    ("A800", 312.0, 19.5),
    ("L40S", 362.0, 91.6),
    ("L40", 181.0, 90.5),
    ("RTX 4090", 165.2, 82.6),
    ("L4", 121.0, 30.3),
];

/// Returns the peak FLOP/s of a GPU of this name, where it is known.
pub fn peak_flops(gpu: &str, is_bf16: bool) -> Option<f64> {
    let (_, bf16, float32) = PEAKS.iter().find(|(name, ..)| gpu.contains(name))?;
    Some(if is_bf16 { *bf16 } else { *float32 } * 1e12)
}

/// GPUs that CUDA shows to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibleGpus {
    pub number: usize,
    /// The maker's name; `None` where they have different ones, or it is not known which ones they are.
    pub name: Option<String>,
}

/// A GPU as its driver describes it.
struct Described {
    name: String,
    uuid: String,
}

/// Returns the NVIDIA GPUs of this machine that CUDA shows to this process, as their driver and CUDA's variables say; `None` where the
/// driver does not say, or parts of GPUs are named.
pub fn visible_gpus() -> Option<VisibleGpus> {
    let gpus = std::fs::read_dir(Path::new("/proc/driver/nvidia/gpus")).ok()?;
    let mut files: Vec<_> = gpus.flatten().map(|gpu| gpu.path().join("information")).collect();
    // By their buses.
    files.sort();
    let gpus = files.iter().map(|file| described(&std::fs::read_to_string(file).ok()?)).collect::<Option<Vec<_>>>()?;
    let by_bus = std::env::var("CUDA_DEVICE_ORDER").is_ok_and(|order| order == "PCI_BUS_ID");
    visible(&gpus, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref(), by_bus)
}

fn described(information: &str) -> Option<Described> {
    let field =
        |key: &str| information.lines().find_map(|line| line.strip_prefix(key)).map(|text| text.trim().to_owned());
    Some(Described { name: field("Model:")?, uuid: field("GPU UUID:").unwrap_or_default() })
}

/// Chooses as CUDA does: numbers and beginnings of UUIDs, up to the first one that there is not. `by_bus`: numbers are in the order of
/// `gpus`; else they are in one of CUDA's own.
fn visible(gpus: &[Described], named: Option<&str>, by_bus: bool) -> Option<VisibleGpus> {
    let Some(named) = named else { return Some(alike(gpus.len(), gpus.iter())) };
    if named.split(',').any(|name| name.trim().starts_with("MIG-")) {
        return None;
    }
    let (mut chosen, mut is_known) = (Vec::new(), true);
    for name in named.split(',').map(str::trim) {
        let found = match name.parse::<usize>() {
            Ok(number) => {
                is_known &= by_bus;
                gpus.get(number)
            }
            Err(_) => gpus.iter().find(|gpu| name.starts_with("GPU-") && gpu.uuid.starts_with(name)),
        };
        let Some(gpu) = found else { break };
        chosen.push(gpu);
    }
    let number = chosen.len();
    Some(if is_known { alike(number, chosen.into_iter()) } else { alike(number, gpus.iter()) })
}

/// Gives so many GPUs the name of these, where it is one.
fn alike<'a>(number: usize, mut gpus: impl Iterator<Item = &'a Described>) -> VisibleGpus {
    let first = gpus.next().filter(|_| number > 0);
    let name = first.filter(|first| gpus.all(|gpu| gpu.name == first.name)).map(|gpu| gpu.name.clone());
    VisibleGpus { number, name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_drivers_write_them() {
        let peak = |name: &str| peak_flops(name, true).map(|flops| flops / 1e12);
        assert_eq!(peak("NVIDIA H200"), Some(989.4));
        assert_eq!(peak("NVIDIA H100 80GB HBM3"), Some(989.4));
        assert_eq!(peak("NVIDIA H100 PCIe"), Some(756.0));
        assert_eq!((peak("NVIDIA H100 NVL"), peak("NVIDIA H200 NVL")), (Some(835.5), Some(835.5)));
        assert_eq!(
            (peak("NVIDIA H20"), peak("NVIDIA L40S"), peak("NVIDIA L4")),
            (Some(148.0), Some(362.0), Some(121.0))
        );
        assert_eq!(peak("NVIDIA A100-SXM4-80GB"), Some(312.0));
        assert_eq!((peak("Tesla V100"), peak_flops("NVIDIA A100-PCIE-40GB", false)), (None, Some(19.5e12)));
    }

    #[test]
    fn gpus_that_cuda_hides_do_not_count() {
        let text = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 12\nGPU UUID: \t GPU-12ab\n";
        let like = |name: &str, uuid: &str| {
            let gpu = described(&text.replace("H200", name).replace("12ab", uuid)).unwrap();
            assert_eq!([&gpu.name, &gpu.uuid], [&format!("NVIDIA {name}"), &format!("GPU-{uuid}")]);
            gpu
        };
        let alike = [like("H200", "1a"), like("H200", "1b"), like("H200", "2a")];
        let mixed = [like("A100", "1a"), like("H200", "1b"), like("H200", "2a")];
        let seen = |gpus: &[Described], named: Option<&str>, by_bus: bool| {
            visible(gpus, named, by_bus).map(|found| (found.number, found.name.unwrap_or_default()))
        };
        let h200 = |number: usize| Some((number, "NVIDIA H200".to_owned()));
        let unknown = |number: usize| Some((number, String::new()));
        assert_eq!([seen(&alike, None, false), seen(&alike, Some("2, 0"), false)], [h200(3), h200(2)]);
        assert_eq!([seen(&alike, Some("1,-1,2"), false), seen(&alike, Some("0,7,1"), true)], [h200(1), h200(1)]);
        assert_eq!([seen(&alike, Some(""), false), seen(&mixed, None, true)], [unknown(0), unknown(3)]);
        // CUDA begins with the fastest one, unless it is told to go by the buses.
        assert_eq!([seen(&mixed, Some("1"), false), seen(&mixed, Some("1,2"), true)], [unknown(1), h200(2)]);
        let by_uuid = |named: &str| seen(&mixed, Some(named), false);
        assert_eq!([by_uuid("GPU-1b,GPU-2"), by_uuid("GPU-9"), by_uuid("MIG-12")], [h200(2), unknown(0), None]);
    }
}

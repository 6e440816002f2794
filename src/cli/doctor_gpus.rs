//! `loongforge doctor` on GPUs: findings of the driver, CUDA, NCCL, and each GPU.

use super::finding::Finding;
use loongforge_core::observe::bytes;
use loongforge_torch::device::{Gpu, Stack};

/// Free memory below which something else uses a GPU, of all of it.
const FREE: f64 = 0.9;

/// Returns findings of a machine whose GPUs can be used.
pub fn of(stack: &Stack, gpus: &[Option<Gpu>]) -> Vec<Finding> {
    let cuda = |version: Option<u32>| match version {
        Some(version) => format!("{}.{}", version / 1000, version % 1000 / 10),
        None => "?".to_owned(),
    };
    let driver = format!(
        "{}, for CUDA up to {}; libtorch has CUDA {}",
        stack.driver.as_deref().unwrap_or("of an unknown version"),
        cuda(stack.driver_cuda),
        cuda(stack.built_cuda)
    );
    // Within one major version an older driver serves what is newer.
    let serves = stack.driver_cuda.zip(stack.built_cuda).is_none_or(|(driver, built)| driver / 1000 >= built / 1000);
    let mut findings = vec![Finding::expect("driver", serves, driver, "update NVIDIA's driver")];
    findings.push(match stack.nccl {
        Some(version) => {
            Finding::good("NCCL", format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100))
        }
        None => {
            let advice = "several GPUs in one pool need it: it comes with pip's torch";
            Finding::expect("NCCL", false, "not found".to_owned(), advice)
        }
    });
    findings.extend(gpus.iter().enumerate().map(|(index, gpu)| {
        let Some(gpu) = gpu else {
            let advice = "see nvidia-smi; runs can leave it out: name the others in CUDA_VISIBLE_DEVICES";
            return Finding::expect("GPU", false, format!("cuda:{index} cannot be used"), advice);
        };
        let (major, minor) = gpu.capability;
        let name = if gpu.name.is_empty() { "of an unknown name" } else { &gpu.name };
        let (free, all) = (bytes(gpu.free), bytes(gpu.memory));
        let found = format!("cuda:{index}, {name}, {free} of {all} are free, compute capability {major}.{minor}");
        if major < 8 {
            return Finding::expect(
                "GPU",
                false,
                found,
                "bfloat16 and flash attention need 8.0 or more: train in float32",
            );
        }
        let is_free = gpu.free as f64 >= FREE * gpu.memory as f64;
        Finding::expect("GPU", is_free, found, "another program uses the memory: see nvidia-smi")
    }));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_named_and_what_it_lacks_is_said() {
        let stack = Stack {
            driver: Some("580.159.04".to_owned()),
            driver_cuda: Some(13000),
            built_cuda: Some(13000),
            nccl: Some(22809),
        };
        let gpu = Gpu { name: "NVIDIA H200".to_owned(), capability: (9, 0), free: 149 << 30, memory: 150 << 30 };
        let said = |stack: &Stack, gpu: &Gpu| {
            let findings = of(stack, &[Some(gpu.clone())]);
            findings.into_iter().map(|finding| (finding.found, finding.advice)).collect::<Vec<_>>()
        };
        let fine = said(&stack, &gpu);
        assert_eq!(fine[0].0, "580.159.04, for CUDA up to 13.0; libtorch has CUDA 13.0");
        assert_eq!(fine[1].0, "2.28.9");
        assert!(fine[2].0.starts_with("cuda:0, NVIDIA H200, ") && fine[2].0.ends_with("compute capability 9.0"));
        let advice = |found: &[(String, &str)]| found.iter().map(|(_, advice)| advice.is_empty()).collect::<Vec<_>>();
        assert_eq!(advice(&fine), [true; 3]);
        let old = Stack { driver_cuda: Some(12080), nccl: None, ..stack };
        let (volta, used) = (Gpu { capability: (7, 0), ..gpu.clone() }, Gpu { free: 1 << 30, ..gpu });
        assert_eq!(advice(&said(&old, &volta)), [false; 3]);
        assert_eq!(advice(&said(&Stack::default(), &used)), [true, false, false]);
        // One that cannot be used hides none behind it.
        let found: Vec<String> = of(&old, &[None, Some(used)]).into_iter().map(|finding| finding.found).collect();
        assert_eq!(found[2], "cuda:0 cannot be used");
        assert!(found[3].starts_with("cuda:1, NVIDIA H200"), "{}", found[3]);
    }
}

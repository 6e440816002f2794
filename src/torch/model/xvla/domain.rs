//! A linear map of each domain (`DomainAwareLinear`): its weights are the rows of a table.
//!
//! Shapes: N samples, R rows of all samples, I inputs, O outputs.

use tch::Tensor;

use super::config::xavier;
use crate::native::embedding;
use crate::params::{Init, ParamSpec, Scope};

/// `fc.weight` `[domains, I·O]`, a matrix `[I, O]` in each row, and `bias.weight` `[domains, O]`.
pub(super) struct DomainLinear {
    weight: Tensor,
    bias: Tensor,
}

impl DomainLinear {
    /// Declares the tables `fc` `[domains, I·O]` and `bias` `[domains, O]`, of which each domain has a row.
    pub fn specs(prefix: &str, name: &str, inputs: i64, outputs: i64, num_domains: i64) -> Vec<ParamSpec> {
        let table = |part: &str, width, init| {
            ParamSpec::new(format!("{prefix}{name}.{part}.weight"), &[num_domains, width], init)
        };
        vec![table("fc", inputs * outputs, xavier(inputs * outputs, num_domains)), table("bias", outputs, Init::Zeros)]
    }

    /// Takes both tables.
    pub fn new(scope: &Scope<'_>, name: &str) -> DomainLinear {
        let [weight, bias] = ["fc", "bias"].map(|part| scope.take(&format!("{name}.{part}.weight")));
        DomainLinear { weight, bias }
    }

    /// Maps rows `[R, I]` of samples, `lens` of each, by the samples' `domains` `[N]`, int64, to `[R, O]`; in the kind of `x`.
    pub fn forward(&self, x_RI: &Tensor, domains: &Tensor, lens: &[i64]) -> Tensor {
        let bias_NO = embedding(&self.bias, domains, -1).to_kind(x_RI.kind());
        let (inputs, outputs) = (x_RI.size()[1], bias_NO.size()[1]);
        let weight_NIO = embedding(&self.weight, domains, -1).to_kind(x_RI.kind()).view([-1, inputs, outputs]);
        let alike = lens.windows(2).all(|two| two[0] == two[1]);
        if alike {
            let x = x_RI.view([lens.len() as i64, -1, inputs]);
            return (x.matmul(&weight_NIO) + bias_NO.unsqueeze(1)).flatten(0, 1);
        }
        let mut first = 0;
        let of_sample = |(sample, len): (i64, &i64)| {
            let x = x_RI.narrow(0, first, *len);
            first += len;
            x.matmul(&weight_NIO.get(sample)) + bias_NO.get(sample)
        };
        Tensor::cat(&(0..).zip(lens).map(of_sample).collect::<Vec<_>>(), 0)
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::DomainLinear;

    /// Samples alike and of different lengths, against each domain's own map.
    #[test]
    fn samples_have_the_map_of_their_domain() {
        tch::manual_seed(6);
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let map = DomainLinear { weight: random(&[3, 20]), bias: random(&[3, 4]) };
        let domains = [2i64, 0];
        for lens in [[3i64, 3], [1, 4]] {
            let x = random(&[lens.iter().sum(), 5]);
            let found = map.forward(&x, &Tensor::from_slice(&domains), &lens);
            let mut first = 0;
            for (len, domain) in lens.into_iter().zip(domains) {
                let weight = map.weight.get(domain).view([5, 4]);
                let expected = x.narrow(0, first, len).matmul(&weight) + map.bias.get(domain);
                assert!(found.narrow(0, first, len).allclose(&expected, 1e-5, 1e-6, false), "{lens:?}");
                first += len;
            }
        }
    }
}

//! Manifold-constrained hyper-connections (Xie et al. 2026, `DeepseekV4HyperConnection`): the residual is several streams. A
//! branch reads a mix of them, its output goes to each with a weight of its own, and the streams themselves are mixed by a
//! matrix that Sinkhorn's iterations make doubly stochastic. All weights depend on the token.
//!
//! Shapes: T tokens, M streams, D hidden size. The streams of a token lie end to end: `[T, M·D]`.

use tch::{Kind, Tensor};

use crate::params::{Init, ParamSpec, Scope};

/// The numbers of a decoder's hyper-connections, by Hugging Face's names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamsConfig {
    /// `hc_mult`
    pub count: i64,
    /// `hc_sinkhorn_iters`, at least 1.
    pub sinkhorn_iters: i64,
    /// `hc_eps`, added to weights and sums.
    pub eps: f64,
    /// The epsilon of the norm of all streams together, which has no weight.
    pub norm_eps: f64,
}

/// The connection of one branch on its parameters.
pub struct HyperConnection {
    config: StreamsConfig,
    map: StreamMap,
}

/// The weights by which a branch's output is added to the streams, in the kind of the streams.
pub struct Spread {
    /// The weights of the output, `[T, M]`.
    pub post_TM: Tensor,
    /// The weight of stream j in the new stream k, `[T, M, M]`.
    pub mix_TMM: Tensor,
}

/// The last mix of streams, before the decoder's last norm (`DeepseekV4HyperHead`).
pub struct HyperHead {
    config: StreamsConfig,
    map: StreamMap,
}

/// A linear map of the normed streams.
struct StreamMap {
    weight: Tensor,
    base: Tensor,
    scale: Tensor,
}

impl StreamMap {
    /// `names` are those of weight, base and scale; `scales` the number of the last.
    fn specs(names: [String; 3], outputs: i64, inputs: i64, scales: i64, std: f64) -> Vec<ParamSpec> {
        let [weight, base, scale] = names;
        vec![
            ParamSpec::new(weight, &[outputs, inputs], Init::Normal(std)),
            ParamSpec::new(base, &[outputs], Init::Zeros),
            ParamSpec::new(scale, &[scales], Init::Ones),
        ]
    }

    /// Returns `[T, outputs]`, float32: without scale and base. The norm's factor of a token is taken out of the product.
    fn forward(&self, x: &Tensor, norm_eps: f64) -> Tensor {
        let squares = x.square().mean_dim([-1i64].as_slice(), true, Kind::Float);
        x.linear(&self.weight.to_kind(Kind::Float), None::<Tensor>) * (squares + norm_eps).rsqrt()
    }
}

/// Returns the sum of streams `[T, M, D]` by weights `[T, M]`, `[T, D]`.
fn collapsed(weights_TM: &Tensor, x_TMD: &Tensor) -> Tensor {
    (weights_TM.unsqueeze(-1) * x_TMD).sum_dim_intlist([1i64].as_slice(), false, Kind::Float)
}

impl StreamsConfig {
    /// Maps `[T, D]` to `[T, M·D]`: every stream begins as the same.
    pub fn spread(&self, x_TD: &Tensor) -> Tensor {
        x_TD.unsqueeze(1).expand([-1, self.count, -1], false).flatten(1, 2)
    }

    fn split(&self, x: &Tensor) -> Tensor {
        x.unflatten(-1, [self.count, -1])
    }
}

impl HyperConnection {
    /// Declares the map from a token's streams `[M·D]` to the weights of reading, of writing and of mixing streams, `[M · (2 +
    /// M)]`, with a bias and three scales.
    pub fn specs(prefix: &str, width: i64, config: &StreamsConfig, std: f64) -> Vec<ParamSpec> {
        let names = ["fn", "base", "scale"].map(|name| format!("{prefix}{name}"));
        StreamMap::specs(names, (2 + config.count) * config.count, config.count * width, 3, std)
    }

    /// Takes the parameters `fn`, `base` and `scale` of a branch.
    pub fn new(scope: &Scope<'_>, config: &StreamsConfig) -> HyperConnection {
        let [weight, base, scale] = ["fn", "base", "scale"].map(|name| scope.take(name));
        HyperConnection { config: *config, map: StreamMap { weight, base, scale } }
    }

    /// Returns the branch's input `[T, D]`, made of the streams `[T, M·D]`, and the weights by which its output is added to them.
    pub fn open(&self, x: &Tensor) -> (Tensor, Spread) {
        let StreamsConfig { count, sinkhorn_iters, eps, norm_eps } = self.config;
        let (kind, x) = (x.kind(), x.to_kind(Kind::Float));
        let [base, scale] = [&self.map.base, &self.map.scale].map(|part| part.to_kind(Kind::Float));
        let maps = self.map.forward(&x, norm_eps);
        let part = |start: i64, len: i64, index: i64| {
            maps.narrow(-1, start, len) * scale.narrow(0, index, 1) + base.narrow(0, start, len)
        };
        let pre_TM = part(0, count, 0).sigmoid() + eps;
        let post_TM = part(count, count, 1).sigmoid() * 2.0;
        let mut mix_TMM =
            part(2 * count, count * count, 2).unflatten(-1, [count, count]).softmax(-1, Kind::Float) + eps;
        let normed = |mix: &Tensor, dim: i64| mix / (mix.sum_dim_intlist([dim].as_slice(), true, Kind::Float) + eps);
        mix_TMM = normed(&mix_TMM, -2);
        for _ in 1..sinkhorn_iters {
            mix_TMM = normed(&normed(&mix_TMM, -1), -2);
        }
        let h_TD = collapsed(&pre_TM, &self.config.split(&x)).to_kind(kind);
        (h_TD, Spread { post_TM: post_TM.to_kind(kind), mix_TMM: mix_TMM.to_kind(kind) })
    }
}

impl Spread {
    /// Returns the streams `[T, M·D]` after a branch that read of `x` and gave `y_TD`.
    pub fn close(&self, x: &Tensor, y_TD: &Tensor) -> Tensor {
        let x_TMD = x.unflatten(-1, [self.post_TM.size()[1], -1]);
        let mixed = self.mix_TMM.transpose(-1, -2).matmul(&x_TMD);
        (self.post_TM.unsqueeze(-1) * y_TD.unsqueeze(-2) + mixed).flatten(1, 2)
    }
}

impl HyperHead {
    /// `path` is the module's.
    pub fn specs(path: &str, width: i64, config: &StreamsConfig, std: f64) -> Vec<ParamSpec> {
        let names = ["fn", "base", "scale"].map(|name| format!("{path}.hc_{name}"));
        StreamMap::specs(names, config.count, config.count * width, 1, std)
    }

    /// Takes the parameters `hc_fn`, `hc_base` and `hc_scale` of the map that makes one stream of all behind the last layer.
    pub fn new(scope: &Scope<'_>, path: &str, config: &StreamsConfig) -> HyperHead {
        let [weight, base, scale] = ["fn", "base", "scale"].map(|name| scope.take(&format!("{path}.hc_{name}")));
        HyperHead { config: *config, map: StreamMap { weight, base, scale } }
    }

    /// Maps `[T, M·D]` to `[T, D]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let (kind, x) = (x.kind(), x.to_kind(Kind::Float));
        let [base, scale] = [&self.map.base, &self.map.scale].map(|part| part.to_kind(Kind::Float));
        let pre_TM = (self.map.forward(&x, self.config.norm_eps) * scale + base).sigmoid() + self.config.eps;
        collapsed(&pre_TM, &self.config.split(&x)).to_kind(kind)
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{HyperConnection, StreamsConfig};
    use crate::params::{ParamStore, Scope};

    /// Streams that are alike stay alike where a matrix is doubly stochastic, and a branch's output is added to each.
    #[test]
    fn maps_of_streams_are_doubly_stochastic() {
        let config = StreamsConfig { count: 4, sinkhorn_iters: 20, eps: 1e-6, norm_eps: 1e-6 };
        let params = ParamStore::new(HyperConnection::specs("hc.", 6, &config, 0.1), Kind::Float, Device::Cpu);
        params.init_random(3);
        let connection = HyperConnection::new(&Scope::new(&params, "hc."), &config);
        tch::manual_seed(3);
        let x = config.spread(&Tensor::randn([5, 6], (Kind::Float, Device::Cpu)));
        let (_, spread) = connection.open(&x);
        for dim in [1i64, 2] {
            let sums = spread.mix_TMM.sum_dim_intlist([dim].as_slice(), false, Kind::Float);
            assert!(sums.allclose(&sums.ones_like(), 1e-3, 1e-3, false), "{sums:?}");
        }
        let y = Tensor::randn([5, 6], (Kind::Float, Device::Cpu));
        let closed = spread.close(&x, &y);
        let expected = &x + (spread.post_TM.unsqueeze(-1) * y.unsqueeze(1)).flatten(1, 2);
        assert!(closed.allclose(&expected, 1e-3, 1e-3, false));
        let (h, _) = connection.open(&Tensor::randn([3, 24], (Kind::BFloat16, Device::Cpu)));
        assert_eq!((h.kind(), h.size()), (Kind::BFloat16, vec![3, 6]));
    }
}

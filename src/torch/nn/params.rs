//! The parameters of one pool in one flat buffer, and a buffer like it for their gradients.
//!
//! One buffer makes the optimizer one fused operator, a reduction one collective and a checkpoint one slice a name.
//! The order is fixed: first the trained parameters that decay (two or more dimensions), then the other trained ones,
//! then the frozen ones, each part as declared. Gradients and the optimizer's state cover the trained front alone.
//! Every parameter starts at a multiple of `ALIGN` elements; the gaps stay zero. What the loss has no gradient of, such
//! as a router's balancing bias, is a buffer: float32 and on its own.

use std::collections::HashMap;

use tch::{Device, Kind, Tensor};

use super::init::{Init, values};
use super::lora::{AdapterSpec, DropoutSeed};
use super::piece::Piece;
use super::shard::Shard;

/// Elements: 64 bytes of float32, a cache line and every vector width.
const ALIGN: i64 = 16;

/// What becomes of a parameter in training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Trained,
    /// Kept as it is.
    Frozen,
    /// Changed by other rules than gradients; always float32.
    Buffer,
}

/// A parameter as its model declares it. Weight decay is for those of two or more dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// The name in Hugging Face's `model.safetensors`, or of our own where the checkpoint has it in several pieces.
    pub name: String,
    /// Of the part that this rank holds.
    pub shape: Vec<i64>,
    pub init: Init,
    pub role: Role,
    /// The checkpoint's tensors that it is made of; none for what is stored apart.
    pub pieces: Vec<Piece>,
    /// Whether it is the weight of a linear map, which may have an adapter.
    pub is_linear: bool,
    /// Of the first parameter of an adapter.
    pub adapter: Option<AdapterSpec>,
    /// A dimension along which several things lie one after the other, and their sizes.
    pub sections: Option<(usize, Vec<i64>)>,
    /// Which part this rank holds; `None` where it holds all and is alone.
    pub shard: Option<Shard>,
}

impl ParamSpec {
    pub fn new(name: impl Into<String>, shape: &[i64], init: Init) -> ParamSpec {
        let name = name.into();
        let pieces = vec![Piece::whole(&name, shape)];
        ParamSpec {
            name,
            shape: shape.to_vec(),
            init,
            role: Role::Trained,
            pieces,
            is_linear: false,
            adapter: None,
            sections: None,
            shard: None,
        }
    }

    /// Along dimension `dim` it is several things of these sizes: each is cut for itself where layers are split.
    pub fn in_sections(self, dim: usize, sizes: &[i64]) -> ParamSpec {
        ParamSpec { sections: Some((dim, sizes.to_vec())), ..self }
    }

    /// The same parameter, stored as `pieces`.
    pub fn stored_as(self, pieces: Vec<Piece>) -> ParamSpec {
        ParamSpec { pieces, ..self }
    }

    pub fn with_role(self, role: Role) -> ParamSpec {
        ParamSpec { role, ..self }
    }

    /// Not trained; a buffer stays one.
    pub fn frozen(self) -> ParamSpec {
        if self.role == Role::Trained { self.with_role(Role::Frozen) } else { self }
    }

    pub fn num_elements(&self) -> i64 {
        self.shape.iter().product()
    }

    /// `tensor`, of the whole parameter's shape, as the checkpoint's tensors with their names, without those that repeat others;
    /// whole where it is stored apart.
    pub fn parts<'a>(&'a self, tensor: &Tensor) -> Vec<(&'a str, Tensor)> {
        if self.pieces.is_empty() {
            return vec![(&self.name, tensor.shallow_clone())];
        }
        let read = self.pieces.iter().filter(|piece| !piece.repeats);
        read.map(|piece| (piece.name.as_str(), piece.view(tensor))).collect()
    }
}

/// The index of a parameter in its store's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParamId(u32);

struct Param {
    spec: ParamSpec,
    /// Of the flat buffer; a buffer has none.
    offset: i64,
    len: i64,
    leaf: Tensor,
}

/// Parameters of one pool. A leaf is a view of the flat buffer, so changing the buffer changes every model built on it.
pub struct ParamStore {
    flat: Tensor,
    params: Vec<Param>,
    by_name: HashMap<String, ParamId>,
    num_decay: i64,
    num_trained: i64,
    /// The number of trained parameters, which come first.
    trained: usize,
    dropout_seed: DropoutSeed,
}

impl ParamStore {
    /// All zeros. Panics when two specs share a name.
    pub fn new(specs: Vec<ParamSpec>, kind: Kind, device: Device) -> ParamStore {
        let (trained, others): (Vec<_>, Vec<_>) = specs.into_iter().partition(|spec| spec.role == Role::Trained);
        let (decayed, undecayed): (Vec<_>, Vec<_>) = trained.into_iter().partition(|spec| spec.shape.len() >= 2);
        let (frozen, buffers): (Vec<_>, Vec<_>) = others.into_iter().partition(|spec| spec.role == Role::Frozen);
        let mut end = 0;
        let mut placed = Vec::new();
        let mut place = |specs: Vec<ParamSpec>| {
            for spec in specs {
                placed.push((end, spec));
                end = (end + placed[placed.len() - 1].1.num_elements() + ALIGN - 1) / ALIGN * ALIGN;
            }
            (end, placed.len())
        };
        let (num_decay, _) = place(decayed);
        let (num_trained, trained) = place(undecayed);
        let (len, _) = place(frozen);

        let flat = Tensor::zeros([len], (kind, device));
        let mut params: Vec<Param> = Vec::with_capacity(placed.len() + buffers.len());
        for (offset, spec) in placed {
            let len = spec.num_elements();
            let leaf = flat.narrow(0, offset, len).view(spec.shape.as_slice());
            params.push(Param { leaf: leaf.set_requires_grad(spec.role == Role::Trained), spec, offset, len });
        }
        for spec in buffers {
            let leaf = Tensor::zeros(spec.shape.as_slice(), (Kind::Float, device));
            params.push(Param { len: spec.num_elements(), spec, offset: -1, leaf });
        }
        let mut by_name = HashMap::new();
        for (index, param) in params.iter().enumerate() {
            let former = by_name.insert(param.spec.name.clone(), ParamId(index as u32));
            assert!(former.is_none(), "parameter {} is declared twice", param.spec.name);
        }
        ParamStore { flat, params, by_name, num_decay, num_trained, trained, dropout_seed: DropoutSeed::default() }
    }

    /// The leaf of parameter `name`. Panics where the model did not declare it.
    pub fn get(&self, name: &str) -> Tensor {
        self.leaf(self.id(name)).shallow_clone()
    }

    pub fn id(&self, name: &str) -> ParamId {
        self.find(name).unwrap_or_else(|| panic!("no parameter {name}"))
    }

    pub fn find(&self, name: &str) -> Option<ParamId> {
        self.by_name.get(name).copied()
    }

    pub fn ids(&self) -> impl Iterator<Item = ParamId> + use<> {
        (0..self.params.len() as u32).map(ParamId)
    }

    /// The trained parameters, which are the first.
    pub fn trained_ids(&self) -> impl Iterator<Item = ParamId> + use<> {
        (0..self.trained as u32).map(ParamId)
    }

    /// In the order of the buffer.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.params.iter().map(|param| param.spec.name.as_str())
    }

    pub fn spec(&self, id: ParamId) -> &ParamSpec {
        &self.params[id.0 as usize].spec
    }

    pub fn leaf(&self, id: ParamId) -> &Tensor {
        &self.params[id.0 as usize].leaf
    }

    /// Offset and length in the flat buffer, in elements. Panics for a buffer.
    pub fn range(&self, id: ParamId) -> (i64, i64) {
        let param = &self.params[id.0 as usize];
        assert!(param.offset >= 0, "{} is a buffer", param.spec.name);
        (param.offset, param.len)
    }

    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// The elements at the front of the buffer to which weight decay applies.
    pub fn num_decay(&self) -> i64 {
        self.num_decay
    }

    /// The trained elements at the front of the buffer, with their gaps.
    pub fn num_trained(&self) -> i64 {
        self.num_trained
    }

    /// The number of parameters' elements, without the gaps.
    pub fn num_elements(&self) -> i64 {
        self.params.iter().map(|param| param.len).sum()
    }

    /// Whether gradients of the trained parameters are computed; a frozen pool's are not. Call it before a tape runs.
    pub fn set_trainable(&self, trainable: bool) {
        for param in &self.params[..self.trained] {
            let _ = param.leaf.set_requires_grad(trainable);
        }
    }

    /// Adapters' dropout: on with the masks of `seed`, which is to be another for every micro-batch, or off.
    pub fn set_dropout(&self, seed: Option<u64>) {
        self.dropout_seed.set(seed);
    }

    pub(super) fn dropout_seed(&self) -> DropoutSeed {
        self.dropout_seed.clone()
    }

    /// Overwrites a parameter. Panics when the shape differs; converts kind and device.
    pub fn set(&self, id: ParamId, values: &Tensor) {
        let param = &self.params[id.0 as usize];
        assert_eq!(values.size(), param.spec.shape, "shape of {}", param.spec.name);
        param.leaf.detach().copy_(values);
    }

    /// As [`ParamStore::set`], of what the rank holds of the whole parameter.
    pub fn set_whole(&self, id: ParamId, values: &Tensor) {
        match &self.spec(id).shard {
            Some(shard) => self.set(id, &shard.take(values)),
            None => self.set(id, values),
        }
    }

    /// Draws every parameter from its `Init`; what a parameter gets depends on `seed` and its name alone.
    pub fn init_random(&self, seed: u64) {
        self.init_where(seed, |_| true);
    }

    /// As [`ParamStore::init_random`] for those whose name is wanted.
    pub fn init_where(&self, seed: u64, wanted: impl Fn(&ParamSpec) -> bool) {
        for id in self.ids().filter(|id| wanted(self.spec(*id))) {
            let param = &self.params[id.0 as usize];
            let shape = param.spec.whole_shape();
            let drawn = values(param.spec.init, seed, &param.spec.name, shape.iter().product::<i64>() as usize);
            self.set_whole(id, &Tensor::from_slice(&drawn).view(shape));
        }
    }

    /// Zero gradients of the trained parameters, float32 whatever the parameters are.
    pub fn new_grad(&self) -> GradBuffer {
        let flat = Tensor::zeros([self.num_trained], (Kind::Float, self.flat.device()));
        let view = |param: &Param| flat.narrow(0, param.offset, param.len).view(param.spec.shape.as_slice());
        GradBuffer { views: self.params[..self.trained].iter().map(view).collect(), flat }
    }
}

/// Gradients of the trained parameters of one `ParamStore`, in its order, float32.
pub struct GradBuffer {
    flat: Tensor,
    views: Vec<Tensor>,
}

impl GradBuffer {
    /// Adds to a parameter's gradient.
    pub fn add(&mut self, id: ParamId, grad: &Tensor) {
        let _ = self.views[id.0 as usize].g_add_(grad);
    }

    pub fn view(&self, id: ParamId) -> &Tensor {
        &self.views[id.0 as usize]
    }

    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    pub fn zero(&mut self) {
        let _ = self.flat.zero_();
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{Init, ParamSpec, ParamStore, Role};

    fn store(kind: Kind) -> ParamStore {
        let specs = vec![
            ParamSpec::new("norm", &[5], Init::Ones),
            ParamSpec::new("w1", &[3, 5], Init::Normal(1.0)),
            ParamSpec::new("bias", &[17], Init::Zeros),
            ParamSpec::new("w2", &[2, 2], Init::Uniform(1.0)),
        ];
        ParamStore::new(specs, kind, Device::Cpu)
    }

    #[test]
    fn decayed_parameters_come_first_and_start_aligned() {
        let store = store(Kind::Float);
        assert_eq!(store.names().collect::<Vec<_>>(), ["w1", "w2", "norm", "bias"]);
        let ranges: Vec<_> = store.ids().map(|id| store.range(id)).collect();
        assert_eq!(ranges, [(0, 15), (16, 4), (32, 5), (48, 17)]);
        assert_eq!((store.num_decay(), store.flat().size()[0], store.num_elements()), (32, 80, 41));
    }

    #[test]
    fn leaves_are_views_of_the_buffer() {
        let store = store(Kind::BFloat16);
        store.init_random(3);
        let bias = store.get("bias");
        let _ = store.flat().shallow_clone().g_add_scalar_(1.0);
        assert!(bias.is_leaf() && bias.requires_grad());
        assert_eq!(bias.double_value(&[16]), 1.0);
        assert_eq!(store.get("norm").double_value(&[0]), 2.0);
    }

    #[test]
    fn what_is_not_trained_lies_behind_and_has_no_gradient() {
        let specs = vec![
            ParamSpec::new("bias", &[3], Init::Zeros).with_role(Role::Buffer),
            ParamSpec::new("base", &[4, 4], Init::Ones).with_role(Role::Frozen),
            ParamSpec::new("norm", &[5], Init::Ones),
            ParamSpec::new("w", &[2, 2], Init::Ones),
        ];
        let store = ParamStore::new(specs, Kind::BFloat16, Device::Cpu);
        assert_eq!(store.names().collect::<Vec<_>>(), ["w", "norm", "base", "bias"]);
        assert_eq!((store.num_decay(), store.num_trained(), store.flat().size()[0]), (16, 32, 48));
        assert_eq!(store.new_grad().flat().size(), [32]);
        store.set_trainable(true);
        let trained = |name: &str| store.get(name).requires_grad();
        assert!(trained("w") && trained("norm") && !trained("base") && !trained("bias"));
        assert_eq!((store.get("bias").kind(), store.trained_ids().count()), (Kind::Float, 2));
        store.set(store.id("bias"), &Tensor::from_slice(&[1f32, 2.0, 3.0]));
        assert_eq!(store.get("bias").double_value(&[2]), 3.0);
    }

    #[test]
    fn gradients_are_summed_in_float32() {
        let store = store(Kind::BFloat16);
        let mut grads = store.new_grad();
        let id = store.id("w2");
        for _ in 0..2 {
            grads.add(id, &Tensor::full([2, 2], 1.00390625, (Kind::BFloat16, Device::Cpu)));
            grads.add(id, &Tensor::full([2, 2], 0.0001, (Kind::Float, Device::Cpu)));
        }
        assert!((grads.flat().double_value(&[19]) - 2.0002).abs() < 1e-5);
        grads.zero();
        assert_eq!(grads.view(id).double_value(&[1, 1]), 0.0);
    }
}

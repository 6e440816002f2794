//! The use of averages ([`Ema`]) in place of the weights.

use super::ema::Ema;
use super::train_state::TrainState;
use crate::native::{NativeError, Purpose, allocated_for};
use crate::params::OwnedPart;
use tch::Tensor;

impl TrainState {
    /// Averages the weights with this decay from the first step on; without effect on a frozen pool.
    ///
    /// # Errors
    /// There is no place for them.
    pub fn with_ema(mut self, decay: Option<f64>) -> Result<Self, NativeError> {
        if let Some(optimizer) = &mut self.optimizer {
            optimizer.ema = decay.map(|decay| Ema::new(&self.params, decay, &optimizer.places)).transpose()?;
        }
        Ok(self)
    }

    /// Returns whether there are averages: after the first step, where they are kept.
    pub fn has_ema(&self) -> bool {
        self.optimizer.as_ref().is_some_and(|optimizer| optimizer.ema.is_some() && optimizer.num_steps > 0)
    }

    /// Returns whether the parameters are the averages now.
    pub fn uses_ema(&self) -> bool {
        self.own_weights.is_some()
    }

    /// Puts the averages in place of the weights, which [`TrainState::use_own`] brings back, bit for bit; without effect
    /// where there are none. All replicas call it, between two steps.
    ///
    /// # Errors
    /// A replica is gone or did not come in time.
    pub fn use_ema(&mut self) -> Result<(), NativeError> {
        let ema = self.optimizer.as_ref().and_then(|optimizer| optimizer.ema.as_ref());
        let Some(ema) = ema.filter(|_| self.has_ema() && !self.uses_ema()) else { return Ok(()) };
        let own = allocated_for(Purpose::Buffers, || self.own_values().copy());
        self.overwrite(|at, len| ema.values.narrow(at, len))?;
        self.own_weights = Some(own);
        Ok(())
    }

    /// Undoes [`TrainState::use_ema`]. All replicas call it.
    ///
    /// # Errors
    /// A replica is gone or did not come in time.
    pub fn use_own(&mut self) -> Result<(), NativeError> {
        let Some(own) = self.own_weights.take() else { return Ok(()) };
        self.overwrite(|at, len| own.narrow(0, at, len))
    }

    /// Sets what the optimizer changes to values, `len` of which lie from `at` on as its state does, on every replica.
    fn overwrite(&self, values: impl Fn(i64, i64) -> Tensor) -> Result<(), NativeError> {
        let _no_grad = tch::no_grad_guard();
        for OwnedPart { at, values: own, .. } in self.optimizer.iter().flat_map(|optimizer| &optimizer.parts) {
            own.shallow_clone().copy_(&values(*at, own.numel() as i64));
        }
        allocated_for(Purpose::Buffers, || {
            self.gather()?;
            self.refresh_norms()
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::comm::ProcessGroup;
    use crate::params::{Init, ParamSpec, ParamStore, Sharding, ZeroStage};
    use crate::train::hf::Shards;
    use crate::train::{AdamWConfig, Export, Lanes, TrainState, load_state, save_state};
    use loongforge_core::message::Lane;
    use std::rc::Rc;
    use std::time::Duration;
    use tch::{Device, Kind, Tensor};

    const ADAMW: AdamWConfig = AdamWConfig { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 };

    fn pool(kind: Kind, group: ProcessGroup, shared: ZeroStage, ema: Option<f64>) -> TrainState {
        let specs = vec![
            ParamSpec::new("layers.0.weight", &[40, 3], Init::Normal(0.5)),
            ParamSpec::new("layers.0.norm", &[3], Init::Ones),
        ];
        let sharding = Sharding::new(shared, group.rank(), group.world());
        let params = ParamStore::shared_out(specs, kind, Device::Cpu, sharding);
        params.init_random(11);
        TrainState::new(Rc::new(params), group, Lanes::PerReplica, Some(ADAMW)).unwrap().with_ema(ema).unwrap()
    }

    fn step(pool: &mut TrainState, round: u32) {
        let (params, lane) = (pool.params().clone(), Lane(pool.rank() as u32));
        for id in params.ids() {
            let shape = params.spec(id).shape.clone();
            let count: i64 = shape.iter().product();
            let grad = (Tensor::arange(count, (Kind::Float, Device::Cpu)) * 0.37 + f64::from(round)).sin();
            pool.lane(lane).unwrap().add(id, &grad.view(shape.as_slice()));
        }
        pool.reduce().unwrap();
        pool.commit(1.0, 1e-2).unwrap();
    }

    /// Returns all weights, whoever has them.
    fn weights(pool: &TrainState) -> Vec<f64> {
        let own = pool.own_values();
        let params = pool.params();
        let whole = |id| pool.gather_state(id, &own).unwrap().to_kind(Kind::Double).view([-1]);
        Vec::try_from(Tensor::cat(&params.trained_ids().map(whole).collect::<Vec<_>>(), 0)).unwrap()
    }

    #[test]
    fn the_average_is_its_formula_and_the_weights_come_back() {
        for kind in [Kind::Float, Kind::BFloat16] {
            let mut pool = pool(kind, ProcessGroup::single(), ZeroStage::Nothing, Some(0.3));
            let first = weights(&pool);
            pool.use_ema().unwrap();
            assert!(!pool.uses_ema() && weights(&pool) == first, "nothing is averaged yet");
            let mut want: Vec<f64> = Vec::new();
            for round in 1..=6 {
                step(&mut pool, round);
                let optimizer = pool.optimizer().unwrap();
                let own = optimizer
                    .master
                    .as_ref()
                    .map_or_else(|| pool.own_values(), |master| master.tensors().next().unwrap().shallow_clone());
                let own: Vec<f64> = Vec::try_from(own.to_kind(Kind::Double)).unwrap();
                let former = f64::from(round - 1);
                let decay = if round == 1 { 0.0 } else { f64::min(0.3, (1.0 + former) / (10.0 + former)) };
                want.resize(own.len(), 0.0);
                want.iter_mut().zip(own).for_each(|(mean, own)| *mean = decay * *mean + (1.0 - decay) * own);
            }
            let before = weights(&pool);
            pool.use_ema().unwrap();
            let (found, near) = (pool.own_values(), if kind == Kind::Float { 1e-6 } else { 4e-3 });
            let found: Vec<f64> = Vec::try_from(found.to_kind(Kind::Double)).unwrap();
            assert!(found.iter().zip(&want).all(|(found, want)| (found - want).abs() < near * want.abs().max(0.1)));
            assert!(weights(&pool) != before, "a slow average is not the weights");
            pool.use_ema().unwrap();
            pool.use_own().unwrap();
            assert_eq!(weights(&pool), before);
            pool.use_own().unwrap();
            assert_eq!(weights(&pool), before);
        }
    }

    /// Averages of two ranks that share out the state, with which one goes on.
    #[test]
    fn averages_are_saved_and_resumed_whoever_has_them() {
        let course = |pool: &mut TrainState, rounds: std::ops::Range<u32>| {
            rounds.for_each(|round| step(pool, round));
            pool.use_ema().unwrap();
            let averages = weights(pool);
            pool.use_own().unwrap();
            averages
        };
        let alone = |kind| {
            let mut pool = pool(kind, ProcessGroup::single(), ZeroStage::Nothing, Some(0.9));
            (course(&mut pool, 0..3), course(&mut pool, 3..5))
        };
        for kind in [Kind::Float, Kind::BFloat16] {
            let (folder, want) = (tempfile::tempdir().unwrap(), alone(kind));
            let rank = |rank: usize| {
                let group = ProcessGroup::gloo(&folder.path().join("store"), "pool", rank, 2, Duration::from_secs(60));
                let mut pool = pool(kind, group.unwrap(), ZeroStage::State, Some(0.9));
                let found = course(&mut pool, 0..3);
                save_state(&pool, folder.path(), &Export::Weights(Shards::single()), "foundation").unwrap();
                found
            };
            let found = std::thread::scope(|scope| {
                let ranks = [0, 1].map(|index| scope.spawn(move || rank(index)));
                ranks.map(|rank| rank.join().unwrap())
            });
            // Two replicas give the sum of two equal gradients: Adam divides it out but for its epsilon.
            let near = |found: &[f64], want: &[f64]| found.iter().zip(want).all(|(a, b)| (a - b).abs() < 8e-3);
            assert!(found[0] == found[1] && near(&found[0], &want.0), "{kind:?}");
            let mut resumed = pool(kind, ProcessGroup::single(), ZeroStage::Nothing, Some(0.9));
            load_state(&mut resumed, folder.path(), "foundation", true).unwrap();
            assert_eq!(course(&mut resumed, 3..3), found[0], "{kind:?}");
            assert!(near(&course(&mut resumed, 3..5), &want.1), "{kind:?}");
        }
    }

    #[test]
    fn a_checkpoint_without_averages_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = pool(Kind::Float, ProcessGroup::single(), ZeroStage::Nothing, None);
        step(&mut first, 0);
        save_state(&first, folder.path(), &Export::Weights(Shards::single()), "foundation").unwrap();
        let mut second = pool(Kind::Float, ProcessGroup::single(), ZeroStage::Nothing, Some(0.9));
        let error = load_state(&mut second, folder.path(), "foundation", true).unwrap_err().to_string();
        assert!(error.contains("train.ema") && error.contains("optimizer-foundation.safetensors"), "{error}");
    }
}

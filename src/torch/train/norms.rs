//! Norms of the rows of weights with DoRA: those that training begins with, and those of rows that ranks have parts of.

use super::train_state::TrainState;
use crate::native::NativeError;
use crate::params::{ADAPTER_PARTS, ParamId, merged_weight, row_norms};
use tch::{Kind, Tensor};

impl TrainState {
    /// Sets the norms of DoRA to those of the rows of their maps, so that adapters begin at nothing. All ranks call it.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    pub fn init_magnitudes(&self) -> Result<(), NativeError> {
        let params = &self.params;
        let magnitudes: Vec<(ParamId, &str)> =
            params.ids().filter_map(|id| Some((id, params.spec(id).name.strip_suffix(ADAPTER_PARTS[2])?))).collect();
        let paths: Vec<&str> = magnitudes.iter().map(|(_, path)| *path).collect();
        let norms = self.norms_of_rows(&paths)?;
        magnitudes.iter().zip(norms).for_each(|((id, _), norms)| params.set(*id, &norms));
        Ok(())
    }

    /// Brings [`ParamStore::joint_norms`](crate::params::ParamStore::joint_norms) up to date. All ranks call it after parameters have
    /// changed.
    ///
    /// # Errors
    /// A rank is gone or did not come in time.
    pub fn refresh_norms(&self) -> Result<(), NativeError> {
        let joint = self.params.joint_norms();
        let paths: Vec<&str> = joint.keys().map(String::as_str).collect();
        let found = self.norms_of_rows(&paths)?;
        let _no_grad = tch::no_grad_guard();
        joint.values().zip(found).for_each(|(norms, found)| norms.shallow_clone().copy_(&found));
        Ok(())
    }

    /// Returns `[out]` each, float32: the norms of the rows of these maps with their adapters added.
    fn norms_of_rows(&self, paths: &[&str]) -> Result<Vec<Tensor>, NativeError> {
        let _no_grad = tch::no_grad_guard();
        let params = &self.params;
        let float = |id: ParamId| params.leaf(id).detach().to_kind(Kind::Float);
        let mut found = Vec::new();
        for path in paths {
            let [a, b] = [0, 1].map(|part| params.id(&format!("{path}{}", ADAPTER_PARTS[part])));
            let weight = params.id(&format!("{path}.weight"));
            params.enter(&[weight, a, b], &[], None)?;
            let scale = params.spec(a).adapter.expect("an adapter's first parameter tells its scale").scale;
            let sum = merged_weight(&float(weight), &float(a), &float(b), None, scale);
            found.push(row_norms(&sum));
        }
        if !paths.is_empty() {
            params.leave(None)?;
        }
        let cut = paths.iter().zip(&found).filter(|(path, _)| params.joint_norms().contains_key(**path));
        let parts: Vec<&Tensor> = cut.map(|(_, norms)| norms).collect();
        if let (Some(mesh), false) = (self.mesh(), parts.is_empty()) {
            let all = Tensor::cat(&parts, 0).square();
            mesh.tp.all_reduce_sum(&all)?;
            let sizes: Vec<i64> = parts.iter().map(|part| part.numel() as i64).collect();
            parts.iter().zip(all.sqrt().split_with_sizes(sizes, 0)).for_each(|(part, whole)| {
                part.shallow_clone().copy_(&whole);
            });
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use crate::comm::ProcessGroup;
    use crate::nn::Linear;
    use crate::params::{LinearModule, LoraConfig, ParamSpec, ParamStore, row_norms};
    use crate::train::{Lanes, TrainState};
    use std::rc::Rc;
    use tch::{Device, Kind};

    #[test]
    fn training_begins_with_the_norms_of_the_base() {
        let base = Linear::specs("a.", "up_proj", 5, 7, false, 0.5);
        let lora = LoraConfig { r: 2, alpha: 4.0, dropout: 0.0, use_rslora: false, use_dora: true };
        let adapter = lora.specs(&LinearModule::of(&base[0]).unwrap());
        let specs = base.into_iter().map(ParamSpec::frozen).chain(adapter).collect();
        let params = Rc::new(ParamStore::new(specs, Kind::Float, Device::Cpu));
        params.init_random(1);
        let pool = TrainState::new(params.clone(), ProcessGroup::single(), Lanes::PerReplica, None).unwrap();
        pool.init_magnitudes().unwrap();
        let norms = row_norms(&params.get("a.up_proj.weight").detach());
        assert_eq!(params.get("a.up_proj.lora_magnitude_vector").detach(), norms);
        assert!(params.joint_norms().is_empty());
    }
}

//! UniPC of second order with B(h) = e^h − 1: each step corrects the sample by what the model says there, then predicts.
//! Its names are the paper's: m is the predicted data, λ = ln((1 − σ)/σ), h a step in λ, r the former step over this one.

use tch::Tensor;

/// The results of former steps that later ones read.
#[derive(Default)]
pub(super) struct UniPc {
    former: Option<Former>,
}

/// The step before: its corrected sample, the predicted data there, and the one before that where it was used.
struct Former {
    sigma: f64,
    x: Tensor,
    m: Tensor,
    used: Option<Tensor>,
    /// The former step's r, where it was of second order.
    r: Option<f64>,
}

fn lambda(sigma: f64) -> f64 {
    ((1.0 - sigma) / sigma).ln()
}

impl UniPc {
    /// Returns the solver's state as tensors with names; none before the first step and after the last. `numbers` is `[2]`, the others
    /// have the shape of the sample.
    pub fn state(&self) -> Vec<(&'static str, Tensor)> {
        let Some(Former { sigma, x, m, used, r }) = &self.former else { return Vec::new() };
        let numbers = Tensor::from_slice(&[*sigma, r.unwrap_or(f64::NAN)]);
        let used = used.iter().map(|used| ("used", used.shallow_clone()));
        let own = [("numbers", numbers), ("former", x.shallow_clone()), ("data", m.shallow_clone())];
        own.into_iter().chain(used).collect()
    }

    /// Undoes [`UniPc::state`]: `numbers` is `[2]`, the other tensors have the sample's shape `[tokens, width]`.
    ///
    /// # Errors
    /// A tensor is missing, whose name is the error.
    pub fn restore(&mut self, tensor: &dyn Fn(&'static str) -> Option<Tensor>) -> Result<(), &'static str> {
        let get = |name| tensor(name).ok_or(name);
        let [sigma, r] = [0, 1].map(|at| get("numbers").map(|numbers| numbers.double_value(&[at])));
        let (x, m, used) = (get("former")?, get("data")?, tensor("used"));
        self.former = Some(Former { sigma: sigma?, x, m, used, r: r.ok().filter(|r| !r.is_nan()) });
        Ok(())
    }

    /// Takes a sample from noise level `sigma` to `next`, which is 0 in the last step. `x` and `velocity` are `[tokens, width]`, as is
    /// what is returned.
    pub fn step(&mut self, x: &Tensor, velocity: &Tensor, [sigma, next]: [f64; 2]) -> Tensor {
        let m = x - velocity * sigma;
        let x = match &self.former {
            Some(former) => former.correct(&m, sigma),
            None => x.shallow_clone(),
        };
        if next == 0.0 {
            // Of first order, and all noise is gone.
            return m;
        }
        let h = lambda(next) - lambda(sigma);
        let b = (-h).exp_m1();
        let before = self.former.take();
        let r = before.as_ref().map(|former| (lambda(former.sigma) - lambda(sigma)) / h);
        let used = before.map(|former| former.m);
        let data = match (&used, r) {
            (Some(former), Some(r)) => &m + (former - &m) * (0.5 / r),
            _ => m.shallow_clone(),
        };
        let predicted = &x * (next / sigma) - data * ((1.0 - next) * b);
        self.former = Some(Former { sigma, x, m, used, r });
        predicted
    }
}

impl Former {
    /// Returns the sample at noise level `sigma`, to which this step went, with the data `m` that the model predicts there.
    fn correct(&self, m: &Tensor, sigma: f64) -> Tensor {
        let h = lambda(sigma) - lambda(self.sigma);
        let b = (-h).exp_m1();
        let phi_2 = -b / h - 1.0;
        let phi_3 = -phi_2 / h - 0.5;
        let newest = m - &self.m;
        let data = match (&self.used, self.r) {
            (Some(before), Some(r)) => {
                let (b_1, b_2) = (phi_2 / b, 2.0 * phi_3 / b);
                let rho = (b_2 - b_1) / (r - 1.0);
                &self.m + (before - &self.m) * (rho / r) + newest * (b_1 - rho)
            }
            _ => &self.m + newest * 0.5,
        };
        &self.x * (sigma / self.sigma) - data * ((1.0 - sigma) * b)
    }
}

//! The actor that a process wants to be.

use loongforge_core::message::{ActorId, PoolName, Role};
use loongforge_core::schedule::PoolSizes;
use std::fmt;

/// A role, its pool, and an index in the pool if the process knows one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedActor {
    pub role: Role,
    pub pool: PoolName,
    pub index: Option<u32>,
}

/// The role and pool do not match the run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    #[error("{role} actors have no pools to choose from; drop the pool `{pool}`")]
    NoChoice { role: Role, pool: PoolName },
    #[error("the run has no {role} pool `{pool}`; it has {known}")]
    Unknown { role: Role, pool: PoolName, known: String },
    #[error("the run has several {role} pools: say which one of {known}")]
    Ambiguous { role: Role, known: String },
}

impl WantedActor {
    /// Returns an actor of `role` and, for an encoder or a foundation, of the pool `named`; if none is named, of the run's only
    /// pool.
    ///
    /// # Errors
    /// Fails if the run has no such pool, or several.
    pub fn new(role: Role, named: Option<PoolName>, pools: &PoolSizes) -> Result<Self, PoolError> {
        let usual = ActorId::new(role, 0).pool;
        let pools = match role {
            Role::Encoder => &pools.encoders[..],
            Role::Foundation => &pools.foundations[..],
            _ => &[],
        };
        let names: Vec<PoolName> = pools.iter().map(|pool| pool.name).collect();
        let known = || names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let pool = match (named, &names[..]) {
            (Some(pool), []) if role != Role::Encoder && pool != usual => {
                return Err(PoolError::NoChoice { role, pool });
            }
            // Of a run without encoders the scheduler says so.
            (_, []) => usual,
            (Some(pool), names) if names.contains(&pool) => pool,
            (Some(pool), _) => return Err(PoolError::Unknown { role, pool, known: known() }),
            (None, names) if names.contains(&usual) => usual,
            (None, &[only]) => only,
            (None, _) => return Err(PoolError::Ambiguous { role, known: known() }),
        };
        Ok(Self { role, pool, index: None })
    }
}

/// A role alone means any actor of the pool with the role's name.
impl From<Role> for WantedActor {
    fn from(role: Role) -> Self {
        Self { role, pool: ActorId::new(role, 0).pool, index: None }
    }
}

impl From<ActorId> for WantedActor {
    fn from(actor: ActorId) -> Self {
        Self { role: actor.role, pool: actor.pool, index: Some(actor.index) }
    }
}

impl fmt::Display for WantedActor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{}/{index}", self.pool),
            None => self.pool.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::schedule::PoolSize;

    #[test]
    fn an_encoder_says_which_pool_where_there_are_several() {
        let name = |name: &str| name.parse::<PoolName>().unwrap();
        let of = |names: &[&str]| PoolSizes {
            encoders: names.iter().map(|text| PoolSize { name: name(text), actors: 1 }).collect(),
            ..PoolSizes::of_roles(1, 0, 1)
        };
        let pool = |named: Option<&str>, names: &[&str]| {
            let wanted = WantedActor::new(Role::Encoder, named.map(name), &of(names));
            wanted.map(|wanted| wanted.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(pool(None, &["encoder"]), Ok("encoder".into()));
        assert_eq!(pool(None, &["audio", "encoder"]), Ok("encoder".into()));
        assert_eq!(pool(None, &["audio"]), Ok("audio".into()));
        assert_eq!(pool(Some("audio"), &["audio", "encoder"]), Ok("audio".into()));
        assert!(pool(None, &["audio", "vision"]).unwrap_err().contains("`audio`, `vision`"));
        assert!(pool(Some("sound"), &["audio", "vision"]).unwrap_err().contains("no encoder pool `sound`"));
        let data = WantedActor::new(Role::Data, Some(name("audio")), &of(&["audio"]));
        assert!(data.unwrap_err().to_string().contains("no pools to choose from"));
        let foundation = WantedActor::new(Role::Foundation, Some(name("low")), &of(&["audio"]));
        assert!(foundation.unwrap_err().to_string().contains("no foundation pool `low`; it has `foundation`"));
    }
}

//! The robots that published policies of GR00T know: each has parameters of its own, by its number.

use crate::data::card::GrootVersion;

/// The numbers of embodiments of N1.6 (`EMBODIMENT_TAG_TO_PROJECTOR_INDEX` of Isaac-GR00T).
const N1_6_EMBODIMENTS: [(&str, i64); 9] = [
    ("robocasa_panda_omron", 13),
    ("gr1", 20),
    ("behavior_r1_pro", 24),
    ("unitree_g1", 8),
    ("libero_panda", 2),
    ("oxe_google", 0),
    ("oxe_widowx", 1),
    ("oxe_droid", 16),
    (NEW, 10),
];
/// The numbers of embodiments of N1.7 (`N1_7_EMBODIMENT_MAPPING` of lerobot 0.6.1).
const N1_7_EMBODIMENTS: [(&str, i64); 13] = [
    ("oxe_droid_relative_eef_relative_joint", 24),
    ("xdof_relative_eef_relative_joint", 27),
    ("xdof_relative_eef_relative_joint_subtask", 27),
    ("real_g1_relative_eef_relative_joints", 25),
    ("real_r1_pro_sharpa_relative_eef", 26),
    ("real_r1_pro_sharpa_relative_eef_human", 26),
    ("real_r1_pro_sharpa_relative_eef_maxinsights", 26),
    ("real_r1_pro_sharpa_relative_eef_mecka", 26),
    ("unitree_g1_full_body_with_waist_height_nav_cmd", 25),
    ("simpler_env_google", 0),
    ("simpler_env_widowx", 1),
    ("libero_sim", 2),
    (NEW, 10),
];
/// A robot that the published policy does not know.
pub const NEW: &str = "new_embodiment";

/// The properties that samples of GR00T alone have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Groot {
    pub version: GrootVersion,
}

impl Groot {
    /// Returns the embodiments that the published policy knows, and their numbers.
    pub fn known(self) -> &'static [(&'static str, i64)] {
        match self.version {
            GrootVersion::N1_6 => &N1_6_EMBODIMENTS,
            GrootVersion::N1_7 => &N1_7_EMBODIMENTS,
        }
    }

    /// Returns the number that the published policy has for an embodiment.
    pub fn published_number(self, name: &str) -> Option<i64> {
        self.known().iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
    }
}

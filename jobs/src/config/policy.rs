use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The initial policy.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyConfig {
    /// A model folder in Hugging Face layout, or an adapter's folder in that of PEFT, a whole checkpoint digest of the
    /// store, `run:NAME` for the newest checkpoint of a run, `run:NAME:rehearsal` for that of its rehearsal role's own,
    /// `bundled` for the policy that comes with envace, or `untrained:SEED` for its shape with random weights. Empty:
    /// `bundled`.
    pub checkpoint: String,
}

/// What differs between the roles.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RolesConfig {
    /// The rehearsal role.
    pub rehearsal: RoleConfig,
}

/// One role's own settings.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RoleConfig {
    /// Weights of this role's own, named as `policy.checkpoint` names them. They are trained beside the policy, on the
    /// role's own generations alone, or stay as they are if `update.train_roles` leaves the role out. Left out: the
    /// weights that both roles share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

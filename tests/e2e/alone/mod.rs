//! Cases that change what all others share.

mod backups;
mod bare_crd;
mod idle;
mod power_loss;
mod traces;
mod tutorial;
mod upgrade;

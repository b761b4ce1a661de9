//! The one test binary of the whole; `README.md` says what belongs in which module.

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod defects_page;
#[cfg(test)]
mod dependencies;
#[cfg(test)]
mod docs;
#[cfg(test)]
mod explain;
#[cfg(test)]
mod graders;
#[cfg(test)]
mod judge;
#[cfg(test)]
mod lora;
#[cfg(test)]
mod objectives;
#[cfg(test)]
mod own_weights;
#[cfg(test)]
mod planning;
#[cfg(test)]
mod pretrained;
#[cfg(test)]
mod sources;
#[cfg(test)]
mod tables;
#[cfg(test)]
mod untrainable;
#[cfg(test)]
mod whole_run;

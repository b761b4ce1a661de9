//! The checklist of the rehearsal role: whether what it imagined is true to what is known.

use crate::error::JobError;
use crate::score::ChecklistItem;

/// Its items, as JSON.
pub(super) const CHECKLIST: &str = include_str!("../../../assets/judge/rehearsal_checklist.json");

/// Its items; the same for every user turn of every task.
///
/// # Errors
/// [`JobError::Json`] if the file was broken.
pub(super) fn items() -> Result<Vec<ChecklistItem>, JobError> {
    serde_json::from_str(CHECKLIST)
        .map_err(|source| JobError::Json { what: "checklist of the rehearsal role".to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_weights_sum_to_1() {
        let items = items().unwrap();
        crate::score::check_checklist(&vec![vec![items]], 1).unwrap();
    }
}

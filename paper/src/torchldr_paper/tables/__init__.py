"""The paper's tables: their cells and values, and our rows beside them."""

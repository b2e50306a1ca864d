"""The paper's tables: their cells and values, our rows beside them, and the pages that show them."""

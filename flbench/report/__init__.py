"""From a store or exported files to tables and figures."""

"""Makes a predictor for the policy from the answers of both sides, and evaluates it. For `nearfar router`."""

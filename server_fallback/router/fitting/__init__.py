"""What both sides answered flows in; a predictor for the policy, and what it is worth, flow out. For `nearfar router`."""

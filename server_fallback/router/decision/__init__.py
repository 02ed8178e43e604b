"""Who answers: a policy and a situation flow in, a decision flows out. Pure, and in no need of a side."""

"""Its import fails."""

import a_module_that_nobody_has  # here
